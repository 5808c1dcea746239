//! Guarantees for applications, on every fabric: one list of cases, run on each of them.

mod cases;
mod fabrics;
#[expect(dead_code, reason = "the guide's program")]
#[path = "../../docs/guide/16-a-fabric.rs"]
mod guide_fabric;

/// Makes a test of each case on each fabric.
macro_rules! conformance {
    ($($groups:tt)+) => {
        on_fabric!(sim: $($groups)+);
        on_fabric!(udp: $($groups)+);
        on_fabric!(delayed_udp: $($groups)+);
        on_fabric!(channel: $($groups)+);
        on_fabric!(delayed_channel: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(shm: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(delayed_shm: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(mapped_shm: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(mapped_udp: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(ofi_tcp #[ignore = "takes long, where libfabric is"]: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(ofi_rxm #[ignore = "takes long, where libfabric is"]: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(ofi_shm #[ignore = "takes long, where libfabric is"]: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(ofi_rxd #[ignore = "takes long, where libfabric is"]: $($groups)+);
        #[cfg(target_os = "linux")]
        on_fabric!(ofi_midplane #[ignore = "takes long, where libfabric is"]: $($groups)+);
    };
}

/// Makes a test of each case on one fabric.
macro_rules! on_fabric {
    ($fabric:ident $(#[$how:meta])?: $($group:ident: $($case:ident),+;)+) => {
        on_fabric!(@of $fabric, [$(#[$how])?], $($group: $($case),+;)+);
    };
    (@of $fabric:ident, $how:tt, $($group:ident: $($case:ident),+;)+) => {
        mod $fabric {
            use super::{cases, fabrics};

            $($(on_fabric!(@case $fabric, $how, $group, $case);)+)+
        }
    };
    (@case $fabric:ident, [$(#[$how:meta])?], $group:ident, $case:ident) => {
        #[test]
        $(#[$how])?
        fn $case() {
            fabrics::$fabric(|site| Box::pin(cases::$group::$case(site)));
        }
    };
}

conformance! {
    host:
        hosts_know_their_nodes,
        time_never_goes_back,
        a_sleep_is_never_early,
        sleeps_until_past_instants_end_at_once,
        a_dropped_sleep_delays_no_task,
        a_random_stream_repeats,
        random_streams_differ_by_name_and_node,
        spawned_tasks_run,
        a_spawned_task_outlives_the_task_that_spawned_it,
        sleeps_end_in_the_order_of_their_instants;
    ports:
        ports_have_numbers_of_their_own,
        memory_of_no_bytes_or_too_many_is_refused,
        fresh_memory_is_zero,
        a_region_keeps_its_bounds,
        a_range_ends_with_its_region,
        a_post_beyond_the_depth_is_refused,
        many_posts_and_one_ring_all_complete,
        an_idle_port_has_no_completion,
        completions_have_their_commands_cookies,
        an_unknown_extension_is_invalid,
        an_unknown_command_is_invalid,
        a_buffer_of_no_bytes_is_invalid,
        the_region_of_another_port_is_refused,
        a_dropped_region_is_refused,
        a_range_past_its_region_is_refused,
        the_counters_answer,
        a_port_has_the_requested_number,
        a_number_that_is_open_is_refused,
        a_number_is_free_once_its_port_is_closed,
        well_known_numbers_are_assigned_only_on_request,
        a_port_has_the_requested_depth,
        an_invalid_depth_is_refused,
        a_region_returns_its_rights_and_its_tag,
        a_region_that_may_not_be_read_is_not_sent,
        a_port_moves_to_another_task;
    messages:
        a_message_to_the_own_node_arrives,
        a_message_arrives_with_its_tag_its_source_and_its_length,
        a_message_of_no_bytes_arrives,
        a_message_of_many_frames_arrives_whole,
        only_the_named_range_is_sent_and_written,
        messages_of_one_sender_stay_in_order,
        messages_of_two_senders_do_not_mix,
        a_message_for_a_port_that_never_listened_is_lost_quietly,
        a_message_without_a_buffer_is_lost_quietly,
        a_message_to_an_absent_node_is_lost_quietly,
        a_dropped_completion_future_loses_nothing,
        each_port_gets_its_own_messages,
        answers_arrive,
        a_message_finds_a_well_known_port,
        a_broadcast_arrives_once_at_each_other_node,
        ports_of_two_tasks_do_not_disturb_each_other;
    buffers:
        buffers_are_taken_in_the_order_of_their_posts,
        buffers_need_no_doorbell,
        a_message_too_long_is_cut_and_the_next_is_not,
        a_port_dropped_with_buffers_is_harmless,
        a_port_inherits_no_buffers,
        a_buffer_that_may_not_be_written_gets_nothing,
        a_region_sent_again_is_read_again,
        a_region_may_be_dropped_once_it_was_read;
    coordinated:
        coordinated_messages_of_two_senders_all_arrive,
        coordinated_messages_of_one_sender_stay_in_order,
        a_coordinated_message_arrives_with_its_tag,
        without_a_route_a_coordinated_message_arrives,
        coordinated_and_other_messages_have_buffers_of_their_own;
}
