//! Compares the structures' layouts with those of the C headers, if these are installed.
#![expect(clippy::print_stderr, reason = "says what is skipped")]

use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use super::tables::*;
use super::*;

/// A structure's C name, size, and members' C names with their offsets.
struct Layout(&'static str, usize, &'static [(&'static str, usize)]);

/// Lists structures by C name and Rust type, each with members, which have the same name in both unless another is
/// given.
macro_rules! layouts {
    ($($c:ident, $rust:ty: $($member:ident $(= $field:ident . $inner:ident)?),+;)*) => {
        static LAYOUTS: &[Layout] = &[$(Layout(
            stringify!($c),
            size_of::<$rust>(),
            &[$((stringify!($member), layouts!(@offset $rust, $member $(, $field . $inner)?))),+],
        )),*];
    };
    (@offset $rust:ty, $member:ident) => { offset_of!($rust, $member) };
    (@offset $rust:ty, $member:ident, $field:ident . $inner:ident) => { offset_of!($rust, $field.$inner) };
}

layouts! {
    fid, Fid: context, ops;
    fi_provider, Provider: fi_version, name, getinfo, cleanup;
    fi_info, Info: caps, src_addr, handle, tx_attr, fabric_attr, nic;
    fi_tx_attr, TxAttr: op_flags, inject_size, rma_iov_limit, tclass;
    fi_rx_attr, RxAttr: op_flags, size, iov_limit;
    fi_ep_attr, EpAttr: max_msg_size, mem_tag_format, auth_key;
    fi_domain_attr, DomainAttr: name, av_type, mr_mode, cq_data_size, mr_iov_limit, mr_cnt, tclass;
    fi_fabric_attr, FabricAttr: prov_name, api_version;
    fi_av_attr, AvAttr: count, name, flags;
    fi_cq_attr, CqAttr: format, wait_obj, wait_set;
    fi_cntr_attr, CntrAttr: wait_set, flags;
    fi_mr_attr, MrAttr: access, context, iface, device;
    fi_cq_msg_entry, CqMsgEntry: flags, len;
    fi_cq_tagged_entry, CqTaggedEntry: flags, buf, tag;
    fi_cq_err_entry, CqErrEntry: tag = entry.tag, olen, err, prov_errno, err_data_size;
    fi_msg, Msg: iov_count, addr, data;
    fi_msg_tagged, MsgTagged: tag, ignore, data;
    fi_rma_iov, RmaIov: addr, len, key;
    fi_msg_rma, MsgRma: rma_iov, rma_iov_count, data;
    fi_ioc, Ioc: addr, count;
    fi_rma_ioc, RmaIoc: count, key;
    fi_msg_atomic, MsgAtomic: addr, rma_iov_count, datatype, op, context, data;
    fi_atomic_attr, AtomicAttr: count, size;
    fid_fabric, FidFabric: ops, api_version;
    fid_domain, FidDomain: ops, mr;
    fid_mr, FidMr: mem_desc, key;
    fid_av, FidAv: ops;
    fid_eq, FidEq: ops;
    fid_cq, FidCq: ops;
    fid_cntr, FidCntr: ops;
    fid_ep, FidEp: ops, cm, msg, rma, tagged, atomic, collective;
    fi_ops, FidOps: close, bind, control, ops_set;
    fi_ops_fabric, FabricOps: domain, eq_open, trywait, domain2;
    fi_ops_domain, DomainOps: av_open, cq_open, endpoint, cntr_open, query_atomic, endpoint2;
    fi_ops_mr, MrOps: reg, regv, regattr;
    fi_ops_av, AvOps: insert, remove, lookup, straddr, av_set;
    fi_ops_eq, EqOps: read, sread, strerror;
    fi_ops_cq, CqOps: read, readfrom, readerr, sreadfrom, signal, strerror;
    fi_ops_cntr, CntrOps: read, wait, seterr;
    fi_ops_ep, EpOps: cancel, getopt, setopt, tx_size_left;
    fi_ops_cm, CmOps: getname, join;
    fi_ops_msg, MsgOps: recvmsg, inject, injectdata;
    fi_ops_tagged, TaggedOps: recvmsg, inject, injectdata;
    fi_ops_rma, RmaOps: readmsg, writemsg, inject, injectdata;
    fi_ops_atomic, AtomicOps: writemsg, inject, readwritemsg, compwritemsg, writevalid, compwritevalid;
}

#[test]
fn sizes_are_those_of_version_1_17() {
    let size = |name| LAYOUTS.iter().find(|layout| layout.0 == name).unwrap().1;
    let sizes =
        ["fi_info", "fi_domain_attr", "fi_ep_attr", "fi_cq_attr", "fi_cq_err_entry", "fid_ep"]
            .map(size);
    assert_eq!(sizes, [120, 192, 96, 40, 80, 80]);
}

/// Compiles a program against the headers in `LIBFABRIC_INCLUDE`, or the system's headers.
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
        "fi_atomic",
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
    let folder = std::env::temp_dir().join(format!("midplane-ofi-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("layout.c"), program).unwrap();
    let compiled = Command::new("cc")
        .args(["-w", "-o", "layout", "layout.c", "-I"])
        .arg(&include)
        .current_dir(&folder)
        .status();
    let Ok(compiled) = compiled else {
        eprintln!("skipped: no C compiler");
        return;
    };
    assert!(compiled.success(), "libfabric's headers have no such structure or member");
    let output = Command::new(folder.join("layout")).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.lines().map(|line| line.parse::<usize>().unwrap());
    for Layout(name, size, members) in LAYOUTS {
        // Function tables and attribute structures grow at their ends.
        let theirs = numbers.next().unwrap();
        let may_be_longer = *name == "fi_ops_av";
        assert!(theirs >= *size || may_be_longer, "{name}: {theirs} bytes, and {size} here");
        for (member, offset) in *members {
            assert_eq!(numbers.next(), Some(*offset), "{name}.{member}");
        }
    }
}
