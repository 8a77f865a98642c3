//! Which scenarios there are: the macros that make a test of each, or one of all.

/// Makes a test of each scenario of the named parts: `conformance!(SITE, KIND: part, …)`. `KIND` is a
/// [`Holdable`](crate::conformance::Holdable), `SITE` a [`Site`](crate::conformance::Site).
#[macro_export]
macro_rules! conformance {
    ($site:ty, $kind:ty: $($part:ident),+ $(,)?) => {
        $( $crate::conformance!(@$part tests $site, $kind); )+
    };
    (@held $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form held $site, $kind:
            c1_take_and_release_again_and_again
            c2_is_locked_only_while_held
            c4_only_the_holder_holds
            c5_holds_go_0_1_0
            c7_release_of_a_lost_hold_is_an_error_and_disturbs_nobody
            c10_remaining_is_the_lease
            c14_force_release_frees_for_everybody
            c16_a_try_dropped_in_flight_leaves_nothing
            c17_a_killed_server_is_an_error_and_not_a_hang
            c25_one_event_for_a_release_and_one_for_a_lease_that_ends
            c28_a_restart_without_data_is_a_loss_and_the_next_hold_is_renewed
        );
    };
    (@crowd $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form crowd $site, $kind:
            c22_one_inbox_serves_many_tasks_and_names
            c26_a_connection_shared_with_other_commands_finishes
        );
    };
    (@exclusive $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form exclusive $site, $kind:
            c8_a_waiter_follows_a_lease_that_ends
            c13_a_wait_that_is_interrupted_and_kept_goes_on
            c23_waiters_of_two_names_are_both_woken
            c41_tries_never_queue
            c43_a_wait_that_ended_leaves_no_ghost
            c44_a_pause_of_writes_is_no_error_to_a_waiter
            c47_a_second_task_waits_and_gets_it_after_release
            c49_a_second_handle_waits_and_gets_it_after_release
            c112_a_wait_is_granted_by_release_or_ends_in_time
            c113_checks_back_off_to_200_ms_while_the_inbox_is_down
        );
    };
    (@exclusive_crowd $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form exclusive_crowd $site, $kind:
            c19_fifteen_tasks_of_one_client_count_exactly
            c20_sixteen_clients_count_exactly
        );
    };
    (@reentrant $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form reentrant $site, $kind:
            c4_an_owner_that_does_not_hold_enters_nothing
            c5_nested_holds_go_0_1_2_1_0
            c7_an_adopted_hold_is_no_longer_released_by_its_first_guard
            c11_releases_of_nested_holds_leave_the_lease
            c29_a_task_after_nested_holds_is_renewed_for_ten_leases
        );
    };
    (@fifo $form:ident $site:ty, $kind:ty) => {
        $crate::conformance!(@$form fifo $site, $kind:
            c34_silent_holders_are_followed_in_order_of_arrival
            c35_each_winner_is_the_head_of_the_queue
        );
    };
    (@tests $part:ident $site:ty, $kind:ty: $($scenario:ident)+) => {
        $(
            #[test]
            fn $scenario() {
                $crate::conformance::check::<$kind, $site>($crate::conformance::$part::$scenario);
            }
        )+
    };
    (@cases $part:ident $site:ty, $kind:ty: $($scenario:ident)+) => {
        [$(
            (stringify!($scenario), || {
                $crate::conformance::check::<$kind, $site>($crate::conformance::$part::$scenario);
            }),
        )+]
    };
}

/// The scenarios of the named parts as values, for [`side_by_side`](crate::conformance::side_by_side):
/// `scenarios!(part, …)`.
#[macro_export]
macro_rules! scenarios {
    ($($part:ident),+ $(,)?) => {{
        use $crate::conformance::{AnyKind, AnySite, Case};
        let mut cases: Vec<Case> = Vec::new();
        $( cases.extend($crate::conformance!(@$part cases AnySite, AnyKind) as [Case; _]); )+
        cases
    }};
}

#[cfg(test)]
mod tests {
    const LIST: &str = include_str!("list.rs");
    const TABLE: &str = include_str!("mod.rs");
    const PARTS: [&str; 6] = [
        include_str!("held.rs"),
        include_str!("crowd.rs"),
        include_str!("exclusive.rs"),
        include_str!("exclusive_crowd.rs"),
        include_str!("reentrant.rs"),
        include_str!("fifo.rs"),
    ];

    /// The lines under Mutex, Watchdog, Fair lock, Non-reentrant and the misc lines that apply.
    const LINES: [u32; 36] = [
        1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35,
        37, 38, 40, 41, 43, 44, 46, 47, 49, 50, 112, 113,
    ];

    fn scenarios() -> Vec<&'static str> {
        let begins = "pub async fn ";
        let functions = PARTS.iter().flat_map(|part| part.lines());
        let names = functions.filter_map(|line| line.strip_prefix(begins)?.split('<').next());
        names.filter(|name| name.starts_with('c')).collect()
    }

    #[test]
    fn every_scenario_is_in_the_list() {
        assert!(scenarios().len() > 30);
        for scenario in scenarios() {
            assert!(LIST.contains(&format!("            {scenario}\n")), "{scenario} never runs");
        }
    }

    #[test]
    fn every_line_has_a_scenario_or_a_row() {
        let rows: Vec<u32> = TABLE
            .lines()
            .filter_map(|line| line.strip_prefix("//! | ")?.split(" |").next())
            .flat_map(|cell| cell.split(", ").filter_map(|number| number.parse().ok()))
            .collect();
        for line in LINES {
            let begins = format!("c{line}_");
            let covered = scenarios().iter().any(|name| name.starts_with(&begins));
            assert!(covered || rows.contains(&line), "line {line} is nowhere");
        }
    }
}
