//! Tests with real daemons and jobs, some of which are killed. This program starts itself as daemons, as clients and
//! as ranks.
//!
//! A filter that matches no scene fails, unless `cargo test` runs several programs with that filter.

#[cfg(target_os = "linux")]
mod adopted;
#[cfg(target_os = "linux")]
mod arrivals;
#[cfg(target_os = "linux")]
mod choice;
#[cfg(target_os = "linux")]
mod images;
#[cfg(target_os = "linux")]
mod keys;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(target_os = "linux")]
mod parts;
#[cfg(target_os = "linux")]
mod random;
#[cfg(target_os = "linux")]
mod rights;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod saved;
#[cfg(target_os = "linux")]
mod stage;
#[cfg(target_os = "linux")]
mod streams;
#[cfg(target_os = "linux")]
mod stuck;
#[cfg(target_os = "linux")]
#[path = "../vis/talk.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod talk;
#[cfg(target_os = "linux")]
mod tcp;
#[cfg(target_os = "linux")]
mod vis;
#[cfg(target_os = "linux")]
mod woken;

/// Limit of a run: all scenes take some seconds, more on a busy machine; the ignored ones take minutes.
#[cfg(target_os = "linux")]
const LIMIT: std::time::Duration = std::time::Duration::from_secs(360);

#[cfg(target_os = "linux")]
fn main() {
    midplane_gang::live::exec_shim::play_part();
    if parts::play() {
        return;
    }
    let choice = choice::Choice::parse(std::env::args().skip(1));
    let scenes = match choice.of(TESTS, IGNORED) {
        Ok(scenes) => scenes,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(101);
        }
    };
    if choice.list {
        return scenes.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    std::thread::spawn(|| {
        std::thread::park_timeout(LIMIT);
        eprintln!("not finished within {LIMIT:?}");
        std::process::exit(1);
    });
    for (name, play) in &scenes {
        play();
        println!("test {name} ... ok");
    }
    println!("{} of {} scenes played", scenes.len(), TESTS.len() + IGNORED.len());
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
const TESTS: &[choice::Scene] = &[
    ("a_filter_that_matches_no_scene_fails", scenes::no_such_scene),
    ("a_job_s_streams_and_exit_code_are_its_client_s", scenes::streams_and_exit_code),
    ("a_client_that_pauses_gets_all_output_of_its_job", streams::a_client_pauses),
    ("input_arrives_after_the_output_is_closed", streams::input_without_output),
    ("labelled_output_keeps_its_unfinished_last_line", streams::unfinished_lines),
    ("a_job_that_can_t_start_is_refused_at_once", scenes::what_cannot_begin),
    ("a_rank_that_dies_ends_its_job_and_no_other", scenes::a_rank_dies),
    ("a_halted_job_runs_in_no_slice", scenes::a_job_is_halted),
    ("nothing_outlives_a_daemon_that_is_killed", scenes::a_daemon_is_killed),
    ("a_daemon_that_follows_a_killed_one_at_once_answers", scenes::a_daemon_follows_at_once),
    ("a_daemon_outlives_a_full_disk_behind_its_standard_error", scenes::standard_error_is_full),
    ("nothing_outlives_a_client_that_is_killed", scenes::a_client_is_killed),
    ("signals_reach_a_suspended_job", scenes::signals),
    ("rank_0_has_a_terminal", scenes::terminal),
    ("jobs_on_the_same_slots_never_run_at_once", scenes::turns_by_groups),
    ("jobs_that_signals_stop_never_run_at_once", scenes::turns_by_signals),
    ("adopted_processes_never_run_in_a_job_s_slice", adopted::takes_turns),
    ("adopted_processes_continue_once_they_are_left", adopted::continues),
    ("a_group_that_can_t_be_adopted_is_refused_with_the_reason", adopted::refusals),
    ("messages_survive_being_preempted_once_and_in_order", scenes::messages_survive),
    ("programs_over_tcp_lose_nothing_at_64_preemptions", tcp::survives),
    ("values_put_by_pmi_are_known_to_all_after_each_barrier", mpi::barriers),
    ("a_rank_that_leaves_a_pmi_barrier_open_ends_its_job", mpi::failures),
    ("interfaces_lose_nothing_over_hundreds_of_preemptions", scenes_vis::hundreds),
    ("a_rank_that_dies_leaves_no_interface_behind", scenes_vis::a_rank_dies),
    ("a_nic_does_nothing_for_interfaces_of_a_suspended_job", scenes_vis::nothing_goes_on),
    ("a_job_with_interfaces_is_in_no_checkpoint", scenes_vis::no_checkpoint),
    ("a_job_that_was_saved_ends_elsewhere_with_every_message", saved::ends_elsewhere),
    ("programs_that_take_no_part_in_checkpoints_count_on_elsewhere", images::count_on_elsewhere),
    ("a_job_continues_after_it_was_saved", saved::goes_on),
    ("a_rank_that_ends_unsaved_does_not_end_the_others", saved::a_rank_ends_instead),
    ("unsavable_jobs_and_damaged_checkpoints_are_refused_with_the_reason", saved::refusals),
    ("a_job_that_is_deadlocked_or_has_terminated_is_listed_with_the_reason", stuck::is_listed),
    ("a_claim_of_memory_that_does_not_fit_is_refused_with_numbers", memory::claims_that_do_not_fit),
    ("a_job_that_needs_more_memory_than_it_claims_is_ended_by_itself", memory::over_the_claim),
    ("suspended_jobs_give_memory_that_others_need", memory::suspended_jobs_give_theirs),
    ("arriving_input_wakes_a_job", woken::by_input),
    ("a_job_of_another_user_has_that_user_s_rights_and_no_others", rights::of_a_job),
    ("a_user_s_jobs_start_although_the_user_continues_them", rights::starts_despite_signals),
    ("users_control_their_own_jobs_and_root_controls_all", rights::of_clients),
    ("a_user_keeps_these_rights_on_other_hosts", rights::on_other_hosts),
    ("checkpoints_are_written_and_read_with_the_user_s_rights", rights::of_checkpoints),
    ("a_daemon_that_is_not_root_s_serves_its_own_user_alone", rights::of_a_daemon),
    ("only_root_adopts_under_a_daemon_of_root", rights::of_adoption),
    ("nothing_of_another_user_outlives_a_daemon_that_is_killed", rights::a_daemon_is_killed),
    ("a_request_over_the_network_wakes_a_suspended_job", arrivals::wake_a_job),
    ("a_tree_of_daemons_survives_the_loss_of_one", scenes::a_tree_loses_one),
    ("hosts_below_one_that_does_not_answer_join_the_root", scenes::a_tree_has_a_silent_host),
    ("another_host_takes_over_from_a_root_that_is_killed", root::takes_over),
    ("output_leaves_a_root_that_is_paused_and_continues", root::is_paused),
    ("messages_survive_the_root", root::messages_survive),
    ("a_client_outlives_its_daemon", root::clients_outlive_their_daemon),
    ("without_a_majority_requests_are_refused", root::no_majority),
    ("a_host_with_another_key_is_not_admitted", scenes::another_key),
    ("an_impostor_with_the_fabric_s_key_joins_nothing", keys::impostor),
    ("a_listed_host_can_t_speak_as_another", keys::another_host),
    ("a_host_that_lives_is_not_displaced", keys::a_live_host_stays),
    ("a_host_that_is_silent_is_replaced", keys::a_silent_host_is_replaced),
    ("a_replayed_hello_fails", keys::a_hello_again),
];

/// Scenes that run with `--ignored`.
#[cfg(target_os = "linux")]
const IGNORED: &[choice::Scene] = &[
    ("interfaces_lose_nothing_over_thousands_of_preemptions", scenes_vis::thousands),
    ("reports_of_200_random_programs_are_true", random::reports_are_true),
];

#[cfg(target_os = "linux")]
mod scenes;
#[cfg(target_os = "linux")]
mod scenes_vis;
