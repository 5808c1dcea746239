//! Runs each model as a test of its own.

macro_rules! models {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            midplane_simhw_models::models::$name();
        }
    )*};
}

models! {
    a_ring_passes_whole_entries_in_order_around_its_end,
    staged_entries_are_seen_all_at_once,
    a_lane_passes_whole_headers_in_order,
    no_wake_is_lost_between_the_last_poll_and_parking,
    no_wake_is_lost_between_the_last_try_and_waiting_for_room,
    no_completion_is_missed_by_a_port_that_begins_to_wait,
    no_doorbell_is_lost_and_a_ringer_always_notifies_the_nic,
    a_parked_daemon_is_woken_by_a_doorbell,
    a_waiting_client_is_woken_by_a_completion,
    a_byte_ring_passes_whole_records_in_order,
    no_wake_is_lost_between_the_last_poll_of_a_byte_ring_and_parking,
    no_wake_is_lost_between_a_full_byte_ring_and_waiting_for_room,
    host_and_nic_never_write_a_gated_ring_at_once,
}
