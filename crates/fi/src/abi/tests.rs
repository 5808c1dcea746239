//! The layouts beside those of the C headers, where there are any.
#![expect(clippy::print_stderr, reason = "says what is skipped")]

use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use super::tables::*;
use super::*;

/// A structure's name in C and size, and the names of members in C and their offsets.
struct Layout(&'static str, usize, &'static [(&'static str, usize)]);

macro_rules! layout {
    ($c:literal, $rust:ty, $($member:literal = $field:ident $(. $inner:ident)?),+) => {
        Layout($c, size_of::<$rust>(), &[$(($member, offset_of!($rust, $field $(. $inner)?))),+])
    };
}

static LAYOUTS: &[Layout] = &[
    layout!("fid", Fid, "fclass" = class, "context" = context, "ops" = ops),
    layout!(
        "fi_provider",
        Provider,
        "fi_version" = fi_version,
        "name" = name,
        "getinfo" = getinfo,
        "cleanup" = cleanup
    ),
    layout!(
        "fi_info",
        Info,
        "caps" = caps,
        "src_addr" = src_addr,
        "handle" = handle,
        "tx_attr" = tx_attr,
        "fabric_attr" = fabric_attr,
        "nic" = nic
    ),
    layout!(
        "fi_tx_attr",
        TxAttr,
        "op_flags" = op_flags,
        "inject_size" = inject_size,
        "rma_iov_limit" = rma_iov_limit,
        "tclass" = tclass
    ),
    layout!("fi_rx_attr", RxAttr, "op_flags" = op_flags, "size" = size, "iov_limit" = iov_limit),
    layout!(
        "fi_ep_attr",
        EpAttr,
        "max_msg_size" = max_msg_size,
        "mem_tag_format" = mem_tag_format,
        "auth_key" = auth_key
    ),
    layout!(
        "fi_domain_attr",
        DomainAttr,
        "name" = name,
        "av_type" = av_type,
        "mr_mode" = mr_mode,
        "cq_data_size" = cq_data_size,
        "mr_iov_limit" = mr_iov_limit,
        "mr_cnt" = mr_cnt,
        "tclass" = tclass
    ),
    layout!("fi_fabric_attr", FabricAttr, "prov_name" = prov_name, "api_version" = api_version),
    layout!("fi_av_attr", AvAttr, "count" = count, "name" = name, "flags" = flags),
    layout!("fi_cq_attr", CqAttr, "format" = format, "wait_obj" = wait_obj, "wait_set" = wait_set),
    layout!("fi_cntr_attr", CntrAttr, "wait_set" = wait_set, "flags" = flags),
    layout!(
        "fi_mr_attr",
        MrAttr,
        "access" = access,
        "context" = context,
        "iface" = iface,
        "device" = device
    ),
    layout!("fi_cq_tagged_entry", CqTaggedEntry, "flags" = flags, "buf" = buf, "tag" = tag),
    layout!(
        "fi_cq_err_entry",
        CqErrEntry,
        "tag" = entry.tag,
        "olen" = olen,
        "err" = err,
        "prov_errno" = prov_errno,
        "err_data_size" = err_data_size
    ),
    layout!("fi_msg", Msg, "iov_count" = iov_count, "addr" = addr, "data" = data),
    layout!("fi_msg_tagged", MsgTagged, "tag" = tag, "ignore" = ignore, "data" = data),
    layout!("fi_rma_iov", RmaIov, "addr" = addr, "len" = len, "key" = key),
    layout!(
        "fi_msg_rma",
        MsgRma,
        "rma_iov" = rma_iov,
        "rma_iov_count" = rma_iov_count,
        "data" = data
    ),
    layout!("fid_fabric", FidFabric, "ops" = ops, "api_version" = api_version),
    layout!("fid_domain", FidDomain, "ops" = ops, "mr" = mr),
    layout!("fid_mr", FidMr, "mem_desc" = mem_desc, "key" = key),
    layout!("fid_av", FidAv, "ops" = ops),
    layout!("fid_eq", FidEq, "ops" = ops),
    layout!("fid_cq", FidCq, "ops" = ops),
    layout!("fid_cntr", FidCntr, "ops" = ops),
    layout!(
        "fid_ep",
        FidEp,
        "ops" = ops,
        "cm" = cm,
        "msg" = msg,
        "rma" = rma,
        "tagged" = tagged,
        "atomic" = atomic,
        "collective" = collective
    ),
    layout!(
        "fi_ops",
        FidOps,
        "close" = close,
        "bind" = bind,
        "control" = control,
        "ops_set" = ops_set
    ),
    layout!(
        "fi_ops_fabric",
        FabricOps,
        "domain" = domain,
        "eq_open" = eq_open,
        "trywait" = trywait,
        "domain2" = domain2
    ),
    layout!(
        "fi_ops_domain",
        DomainOps,
        "av_open" = av_open,
        "cq_open" = cq_open,
        "endpoint" = endpoint,
        "cntr_open" = cntr_open,
        "endpoint2" = endpoint2
    ),
    layout!("fi_ops_mr", MrOps, "reg" = reg, "regv" = regv, "regattr" = regattr),
    layout!(
        "fi_ops_av",
        AvOps,
        "insert" = insert,
        "remove" = remove,
        "lookup" = lookup,
        "straddr" = straddr,
        "av_set" = av_set
    ),
    layout!("fi_ops_eq", EqOps, "read" = read, "sread" = sread, "strerror" = strerror),
    layout!(
        "fi_ops_cq",
        CqOps,
        "read" = read,
        "readfrom" = readfrom,
        "readerr" = readerr,
        "sreadfrom" = sreadfrom,
        "signal" = signal,
        "strerror" = strerror
    ),
    layout!("fi_ops_cntr", CntrOps, "read" = read, "wait" = wait, "seterr" = seterr),
    layout!(
        "fi_ops_ep",
        EpOps,
        "cancel" = cancel,
        "getopt" = getopt,
        "setopt" = setopt,
        "tx_size_left" = tx_size_left
    ),
    layout!("fi_ops_cm", CmOps, "getname" = getname, "join" = join),
    layout!(
        "fi_ops_msg",
        MsgOps,
        "recvmsg" = recvmsg,
        "inject" = inject,
        "injectdata" = injectdata
    ),
    layout!(
        "fi_ops_tagged",
        TaggedOps,
        "recvmsg" = recvmsg,
        "inject" = inject,
        "injectdata" = injectdata
    ),
    layout!(
        "fi_ops_rma",
        RmaOps,
        "readmsg" = readmsg,
        "writemsg" = writemsg,
        "inject" = inject,
        "injectdata" = injectdata
    ),
];

#[test]
fn sizes_are_those_of_version_1_17() {
    let size = |name| LAYOUTS.iter().find(|layout| layout.0 == name).unwrap().1;
    let sizes =
        ["fi_info", "fi_domain_attr", "fi_ep_attr", "fi_cq_attr", "fi_cq_err_entry", "fid_ep"]
            .map(size);
    assert_eq!(sizes, [120, 192, 96, 40, 80, 80]);
}

/// Compiles a program against the headers in `LIBFABRIC_INCLUDE`, or those of the system.
#[test]
fn layouts_are_those_of_the_c_headers_where_there_are_any() {
    let include =
        std::env::var_os("LIBFABRIC_INCLUDE").map_or_else(|| "/usr/include".into(), PathBuf::from);
    if !include.join("rdma/fabric.h").exists() {
        eprintln!("skipped: there is no rdma/fabric.h; name its folder in LIBFABRIC_INCLUDE");
        return;
    }
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in [
        "fabric",
        "fi_domain",
        "fi_eq",
        "fi_endpoint",
        "fi_cm",
        "fi_rma",
        "fi_tagged",
        "providers/fi_prov",
    ] {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    program += "int main(void) {\n";
    for Layout(name, _, members) in LAYOUTS {
        writeln!(program, "printf(\"%zu\\n\", sizeof(struct {name}));").unwrap();
        for (member, _) in *members {
            writeln!(program, "printf(\"%zu\\n\", offsetof(struct {name}, {member}));").unwrap();
        }
    }
    program += "}\n";
    let folder = std::env::temp_dir().join(format!("midplane-fi-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("layout.c"), program).unwrap();
    let compiled = Command::new("cc")
        .args(["-w", "-o", "layout", "layout.c", "-I"])
        .arg(&include)
        .current_dir(&folder)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler, or it refuses these headers");
        return;
    }
    let output = Command::new(folder.join("layout")).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.lines().map(|line| line.parse::<usize>().unwrap());
    for Layout(name, size, members) in LAYOUTS {
        // Tables and attributes grow at their ends.
        let theirs = numbers.next().unwrap();
        let may_be_longer = *name == "fi_ops_av";
        assert!(theirs >= *size || may_be_longer, "{name}: {theirs} bytes, and {size} here");
        for (member, offset) in *members {
            assert_eq!(numbers.next(), Some(*offset), "{name}.{member}");
        }
    }
}
