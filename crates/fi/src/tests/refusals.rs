//! Calls that the provider refuses.

use std::mem::zeroed;
use std::ptr::{null, null_mut};

use super::side::{Pair, Side, close, is_alone, next};
use crate::abi::constants::*;
use crate::abi::{CntrAttr, Info, Provider, RxAttr, TxAttr};
use crate::address::{Address, BYTES};
use crate::objects::region::ENOKEY;

#[test]
fn queues_counters_and_address_vectors_stay_open_while_they_are_in_use() {
    let Pair { one: side, .. } = Pair::new();
    let counter = side.open_counter();
    let region = side.register(&mut [0; 8], 42);
    // SAFETY: the region and the counter are open.
    let code = unsafe { ((*(*region).fid.ops).bind)(region.cast(), counter.cast(), REMOTE_READ) };
    assert_eq!(code, 0);
    let bound = [side.cq.cast(), side.counter.cast(), side.av.cast()];
    assert_eq!(bound.map(close), [-EBUSY; 3]);
    assert_eq!([counter.cast(), region.cast(), counter.cast()].map(close), [-EBUSY, 0, 0]);
    side.close_endpoint();
    assert_eq!(bound.map(close), [0; 3]);
}

#[test]
fn a_region_with_a_key_in_use_is_refused() {
    let side = Side::open();
    side.register(&mut [0; 8], 42);
    let (mut bytes, mut out) = ([0_u8; 8], null_mut());
    // SAFETY: the domain is open, and the bytes outlive the call, which registers nothing.
    let code = unsafe {
        let (domain, from) = (side.domain.cast(), bytes.as_mut_ptr().cast());
        let reg = (*(*side.domain).mr).reg;
        reg(domain, from, 8, REMOTE_READ, 0, 42, 0, &raw mut out, null_mut())
    };
    assert_eq!(code, -ENOKEY);
}

#[test]
fn counters_of_events_or_with_descriptors_that_do_not_exist_are_refused() {
    let side = Side::open();
    let refused = (0, WAIT_FD, -ENOSYS);
    let cases = [(0, WAIT_UNSPEC, 0), (0, WAIT_YIELD, 0), refused, (1, WAIT_NONE, -ENOSYS)];
    // SAFETY: the domain is open, and zeros are valid attributes.
    unsafe {
        let (open, mut out) = ((*(*side.domain).ops).cntr_open, null_mut());
        for (events, wait_obj, expected) in cases {
            let mut attr = CntrAttr { events, wait_obj, ..zeroed() };
            assert_eq!(open(side.domain, &raw mut attr, &raw mut out, null_mut()), expected);
        }
        assert_eq!(open(side.domain, null_mut(), &raw mut out, null_mut()), 0);
    }
}

#[test]
fn a_peer_on_an_unreachable_host_fails() {
    let side = Side::open();
    let own = Address::parse(&side.name()).unwrap();
    let to = side.set_route(&Address { host: own.host ^ 1, endpoint: 1, udp: None }.bytes());
    assert_eq!(side.send(to, 1, b"four", 0, 7), 0);
    let (entry, error, _) = next(&side);
    assert_eq!((entry.op_context as usize, error), (7, EHOSTUNREACH));
    assert_eq!(side.send(to, 1, b"four", 0, 8), -(EHOSTUNREACH as isize));
}

#[test]
fn endpoints_and_domains_with_flags_are_refused() {
    let side = Side::open();
    // SAFETY: the domain and its fabric are open.
    let [endpoint, domain] =
        unsafe { [(*(*side.domain).ops).endpoint2, (*(*side.fabric).ops).domain2] };
    assert_eq!([endpoint(), domain()], [-(ENOSYS as isize); 2]);
}

#[test]
fn an_endpoint_without_its_key_file_is_refused() {
    if !is_alone("tests::refusals::an_endpoint_without_its_key_file_is_refused") {
        return;
    }
    let side = Side::open();
    let mut out = null_mut();
    // SAFETY: no other thread of this process uses the environment; the domain and the description are open.
    let code = unsafe {
        std::env::set_var("FI_MIDPLANE_NETWORK", "127.0.0.1");
        std::env::set_var("FI_MIDPLANE_KEY_FILE", "/no/such/file");
        ((*(*side.domain).ops).endpoint)(side.domain, side.info, &raw mut out, null_mut())
    };
    assert_eq!(code, -ENOENT);
}

#[test]
fn an_insertion_of_addresses_reports_the_error_of_each() {
    let side = Side::open();
    let addresses = [side.name(), [0; BYTES], side.name()];
    let (mut numbers, mut errors) = ([0; 3], [9; 3]);
    // SAFETY: the vector is open; there are three addresses, and space for three numbers and errors.
    let count = unsafe {
        let (from, out) = (addresses.as_ptr().cast(), errors.as_mut_ptr());
        let insert = (*(*side.av).ops).insert;
        insert(side.av, from, 3, numbers.as_mut_ptr(), SYNC_ERR, out.cast())
    };
    assert_eq!((count, errors), (2, [0, EINVAL, 0]));
    assert_eq!(numbers, [0, ADDR_UNSPEC, 0]);
}

#[test]
fn hints_that_require_completions_in_order_are_refused() {
    // SAFETY: zeros are valid hints; the attributes outlive the calls.
    unsafe {
        let provider = crate::provider::fi_prov_ini().cast::<Provider>();
        let get = |tx: &mut TxAttr, rx: &mut RxAttr| {
            let mut out: *mut Info = null_mut();
            let hints = Info { tx_attr: tx, rx_attr: rx, ..zeroed() };
            let hints = &raw const hints;
            ((*provider).getinfo)(1 << 16 | 17, null(), null(), 0, hints, &raw mut out)
        };
        let strict = 0x1ff;
        assert_eq!(get(&mut zeroed(), &mut zeroed()), 0);
        let mut tx = TxAttr { comp_order: strict, ..zeroed() };
        assert_eq!(get(&mut tx, &mut zeroed()), -ENODATA);
        let mut rx = RxAttr { comp_order: strict, ..zeroed() };
        assert_eq!(get(&mut zeroed(), &mut rx), -ENODATA);
    }
}
