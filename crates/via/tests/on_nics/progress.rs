//! Messages move while their process waits for its NIC.

use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::request::Mode;
use midplane_via::rdma::RdmaConfig;

use crate::on_nics::fabric;
use crate::on_nics::job::run_in;
use crate::pair::{Setting, pattern};

#[test]
fn a_long_message_moves_while_its_processes_wait_for_their_nics() {
    let mut fabric = fabric(Setting::default());
    run_in(&mut fabric, 2, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        let (own, other) = (world.rank(), Rank(1 - world.rank().0));
        for sender in [Rank(0), Rank(1)] {
            if own == sender {
                let bytes = pattern(own.0, 2_000_000);
                let sent = world.isend(Mode::Synchronous, other, Tag(1), bytes).unwrap();
                nics.barrier().await.unwrap();
                sent.await.unwrap();
            } else {
                let message = world.receive(other, Tag(1)).await.unwrap();
                assert_eq!(message.bytes, pattern(other.0, 2_000_000));
                nics.barrier().await.unwrap();
            }
        }
    });
}
