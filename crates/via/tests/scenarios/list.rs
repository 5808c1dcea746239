//! The list of all scenarios.

/// Passes all scenarios to a macro: the module of each, its name, and the number of ranks that run it.
macro_rules! each {
    ($run:ident) => {
        $run! {
            exchange: sendrecv1 2, sendrecv2 2, sendrecv3 2, isendirecv 2, isendrecv 3, isendrecv_replace 3,
                pingping 2, eagerdt 2, dtype_send 2, large_tag 2, pipeline 2, pssend 2,
                multi_psend_derived 2, send_tests 3;
            buffered: bsend1 2, bsend2 2, bsend3 2, bsend4 1, bsend5 3, bsend_iflush 2, bsendalign 2,
                bsendfrag 2, bsendpending 2, ibsend 2;
            cancelling: cancelrecv 2, cancelanysrc 2, rcancel 2, scancel 2, scancel2 2, scancel_unmatch 2,
                pscancel 2, issendselfcancel 1;
            null: probenull 1, recvnull 1, inactivereq 1, waitany_null 2, waittestnull 1, rqstatus 2,
                rqfree 2, rqfreeb 2;
            probing: probe_unexp 2, mprobe 2, mprobe_self_free 2, isendselfprobe 1, recv_any 4,
                precv_anysrc 4, precv_anysrc_exp 2;
            selves: sendself 1, isendself 1;
            several: anyall 3, sendall 4, huge_dupcomm 2, comm_split 6, threaded_sr 2;
            volume: sendflood 4, many_isend 2, manylmt 3, huge_anysrc 2, huge_ssend 2, huge_underflow 2,
                large_message 2, pt2pt_large 2;
            failures: truncmsg1 2, truncmsg2 2, truncmsg_mrecv 2, errinstatwa 2, errinstatws 2,
                errinstatta 2, proberank 2, probedead 3, recvdead 3, senddead 2, isenddead 2, sendalive 2, anysource 3,
                barrier_dead 2;
        }
    };
}
pub(crate) use each;
