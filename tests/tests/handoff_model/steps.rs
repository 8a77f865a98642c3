//! Everything that can happen next. The network is one unordered set: whatever is on its way may arrive now.

use std::fmt;

use super::case::{Case, Fault, Mechanism};
use super::server::Server;
use super::state::{
    CLIENTS, Call, Client, DEAD, DEAF, Flag, HOLDS, OUTRUN_PUSH, PUSH, PUSHES, Phase, QUEUED,
    REFUSAL, Release, STRAY_CHECK, STRAY_CHECK_TO_TAIL, STRAY_RELEASE, STRAY_RELEASE_LATE, State,
};

/// One thing that happens to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Asks,
    Checks,
    Releases,
    ServerRunsAcquire,
    ServerRunsStrayAcquire,
    ServerRunsCheck,
    ServerRunsStrayCheck,
    ServerRunsRelease,
    ServerRunsStrayRelease,
    ServerRunsRenew,
    HearsAcquire,
    HearsPush,
    HearsPushAndAcquire,
    HearsOutrunPush,
    HearsRefusal,
    HearsCheck,
    HearsRenew,
    HearsRelease,
    ServerNoticesTheCrash,
    InboxOpens,
    LeaseOfTheDeadEnds,
    DeadlineOfTheDeadPasses,
    Fault(Fault),
    LosesCheck,
    LosesRenew,
    LosesRelease,
    LosesHold,
    HearsAcquireTooLate,
    HearsPushTooLate,
    HearsCheckLate,
    HearsCheckTooLate,
}

impl What {
    /// It happens only so often.
    pub(crate) fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Fault(_)
                | Self::LosesCheck
                | Self::LosesRenew
                | Self::LosesRelease
                | Self::LosesHold
                | Self::HearsAcquireTooLate
                | Self::HearsPushTooLate
                | Self::HearsCheckLate
                | Self::HearsCheckTooLate
        )
    }
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) who: usize,
    pub(crate) what: What,
    /// A script has run that has to leave a settled queue.
    pub(crate) settles: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.what {
            What::Asks => "sends its acquire",
            What::Checks => "sends a check",
            What::Releases => "releases: sends its release",
            What::ServerRunsAcquire => "its acquire reaches the server",
            What::ServerRunsStrayAcquire => "an acquire that it gave up reaches the server",
            What::ServerRunsCheck => "its check reaches the server",
            What::ServerRunsStrayCheck => "a check that it gave up reaches the server",
            What::ServerRunsRelease => "its release reaches the server",
            What::ServerRunsStrayRelease => {
                "a release whose answer nobody hears reaches the server"
            }
            What::ServerRunsRenew => "its renewal, to confirm a grant, reaches the server",
            What::HearsAcquire => "hears the answer to its acquire",
            What::HearsPush => "hears a pushed grant",
            What::HearsPushAndAcquire => {
                "hears a pushed grant and, in the same moment, the answer to its acquire"
            }
            What::HearsOutrunPush => "hears a pushed grant whose lease is over",
            What::HearsRefusal => "hears that it was taken out of the queue",
            What::HearsCheck => "hears the answer to its check",
            What::HearsRenew => "hears the answer to its renewal",
            What::HearsRelease => "hears that it is released, and forgets the id",
            What::ServerNoticesTheCrash => "the server closes its inbox",
            What::InboxOpens => "its inbox is open again",
            What::LeaseOfTheDeadEnds => "dead, its lease ends at the server",
            What::DeadlineOfTheDeadPasses => "dead, its deadline in the queue passes",
            What::Fault(Fault::Crash) => "crashes",
            What::Fault(Fault::LostPush) => "the push to it is lost",
            What::Fault(Fault::InboxDown) => "its inbox breaks",
            What::Fault(Fault::Resend) => "gets no answer to its acquire and sends it again",
            What::Fault(Fault::Cancel) => "gives up: sends its cancel",
            What::Fault(Fault::Purge) => "its deadline in the queue passes",
            What::Fault(Fault::Expiry) => "its lease ends at the server",
            What::Fault(Fault::Limit) => return write!(f, "an operator changes the limit"),
            What::Fault(Fault::Removal) => "an operator takes it out of the queue",
            What::LosesCheck => "gets no answer to its check",
            What::LosesRenew => "gets no answer to its renewal",
            What::LosesRelease => "gets no answer to its release and sends it again",
            What::LosesHold => "its local deadline passes: it has lost the hold and ends it",
            What::HearsAcquireTooLate => {
                "hears by its acquire of a hold whose local deadline has passed"
            }
            What::HearsPushTooLate => "hears a pushed grant of which too little is left",
            What::HearsCheckLate => "hears by its check of a grant of which too little is left",
            What::HearsCheckTooLate => {
                "hears by its check of a grant whose local deadline has passed"
            }
        };
        write!(f, "client {}: {words}", self.who + 1)
    }
}

/// The next states of one state.
pub(crate) struct Next<'a> {
    case: &'a Case,
    from: State,
    who: usize,
    found: &'a mut Vec<(Step, State)>,
}

/// Lists every step from a state.
pub(crate) fn next(case: &Case, from: &State, found: &mut Vec<(Step, State)>) {
    found.clear();
    for who in 0..CLIENTS {
        let mut next = Next { case, from: *from, who, found };
        next.of_the_client();
        next.of_its_ears();
        next.of_the_server();
        next.of_time();
        if from.budget > 0 {
            next.faults();
            next.lost_answers();
            next.late_answers();
        }
    }
}

impl Next<'_> {
    fn client(&self) -> Client {
        self.from.clients[self.who]
    }

    fn then(&mut self, what: What, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.from;
        let settles = change(&mut state);
        if what.is_fault() {
            state.budget -= 1;
        }
        state.tidy();
        self.found.push((Step { who: self.who, what, settles }, state));
    }

    fn client_does(&mut self, what: What, change: impl FnOnce(&mut Client)) {
        let who = self.who;
        self.then(what, |state| {
            change(&mut state.clients[who]);
            false
        });
    }

    fn of_the_client(&mut self) {
        let (client, case) = (self.client(), self.case);
        match client.phase {
            Phase::Idle => self.client_does(What::Asks, Client::ask),
            Phase::Waiting if client.check == Call::Unsent && case.has(Mechanism::Check) => {
                self.client_does(What::Checks, Client::send_check);
            }
            Phase::Held => self.client_does(What::Releases, |client| client.end(case)),
            Phase::Asking | Phase::Waiting | Phase::Ending | Phase::Done | Phase::Crashed => {}
        }
    }

    fn of_its_ears(&mut self) {
        let (client, case) = (self.client(), self.case);
        let answered =
            |call| matches!(call, Call::Taken | Call::Outrun | Call::Queued | Call::Refused);
        if answered(client.acquire) {
            self.client_does(What::HearsAcquire, |client| client.hear_acquire(case));
        }
        if client.is(PUSH) {
            self.client_does(What::HearsPush, |client| client.hear_push(case, false));
            if answered(client.acquire) && !case.fixed {
                self.client_does(What::HearsPushAndAcquire, |client| {
                    client.acquire = Call::Unsent;
                    client.hear_push(case, false);
                });
            }
        }
        if client.is(OUTRUN_PUSH) {
            self.client_does(What::HearsOutrunPush, |client| client.hear_push(case, true));
        }
        if client.is(REFUSAL) {
            self.client_does(What::HearsRefusal, |client| client.hear_refusal(case));
        }
        if answered(client.check) {
            self.client_does(What::HearsCheck, |client| client.hear_check(case));
        }
        if answered(client.renew) {
            self.client_does(What::HearsRenew, Client::hear_renew);
        }
        if client.release == Release::Answered {
            self.client_does(What::HearsRelease, Client::forget);
        }
    }

    /// A script runs; `answer` is what becomes of the call in the client's slot.
    fn server_runs(
        &mut self,
        what: What,
        script: impl FnOnce(&mut Server<'_>, usize) -> Call,
        answer: impl FnOnce(&mut Client, Call),
    ) {
        let (case, who) = (self.case, self.who);
        self.then(what, |state| {
            let mut server = Server::new(case, state);
            let (told, settles) = (script(&mut server, who), server.settles);
            answer(&mut state.clients[who], told);
            settles
        });
    }

    fn of_the_server(&mut self) {
        let client = self.client();
        if client.acquire == Call::Sent {
            let answer = |client: &mut Client, told| client.acquire = told;
            self.server_runs(What::ServerRunsAcquire, |server, who| server.acquire(who), answer);
        }
        if client.stray_acquires > 0 {
            let answer = |client: &mut Client, _| client.stray_acquires -= 1;
            let what = What::ServerRunsStrayAcquire;
            self.server_runs(what, |server, who| server.acquire(who), answer);
        }
        if matches!(client.check, Call::Sent | Call::SentToTail) {
            let to_tail = client.check == Call::SentToTail;
            let script = |server: &mut Server<'_>, who: usize| server.check(who, to_tail);
            let answer = |client: &mut Client, told| client.check = told;
            self.server_runs(What::ServerRunsCheck, script, answer);
        }
        for (stray, to_tail) in [(STRAY_CHECK, false), (STRAY_CHECK_TO_TAIL, true)] {
            if client.is(stray) {
                let script = |server: &mut Server<'_>, who: usize| server.check(who, to_tail);
                let answer = |client: &mut Client, _| client.clear(stray);
                self.server_runs(What::ServerRunsStrayCheck, script, answer);
            }
        }
        if matches!(client.release, Release::Sent | Release::SentLate) {
            let answer = |client: &mut Client| client.release = Release::Answered;
            let late = client.release == Release::SentLate;
            self.server_releases(What::ServerRunsRelease, late, answer);
        }
        for (stray, late) in [(STRAY_RELEASE, false), (STRAY_RELEASE_LATE, true)] {
            if client.is(stray) {
                let answer = |client: &mut Client| client.clear(stray);
                self.server_releases(What::ServerRunsStrayRelease, late, answer);
            }
        }
        if client.renew == Call::Sent {
            let answer = |client: &mut Client, told| client.renew = told;
            self.server_runs(What::ServerRunsRenew, |server, who| server.renew(who), answer);
        }
    }

    fn server_does(&mut self, what: What, script: impl FnOnce(&mut Server<'_>, usize)) {
        let (case, who) = (self.case, self.who);
        self.then(what, |state| {
            let mut server = Server::new(case, state);
            script(&mut server, who);
            server.settles
        });
    }

    fn server_releases(&mut self, what: What, late: bool, answer: impl FnOnce(&mut Client)) {
        let (case, who) = (self.case, self.who);
        self.then(what, |state| {
            answer(&mut state.clients[who]);
            let mut server = Server::new(case, state);
            server.release(who, late);
            server.settles
        });
    }

    /// What time does without anybody's fault.
    fn of_time(&mut self) {
        let client = self.client();
        let crashed = client.phase == Phase::Crashed;
        if crashed && !client.is(DEAF) {
            self.client_does(What::ServerNoticesTheCrash, |client| client.set(DEAF));
        }
        if crashed && client.is(HOLDS) {
            self.client_does(What::LeaseOfTheDeadEnds, |client| client.clear(HOLDS));
        }
        if crashed && queued_alive(&client) {
            self.client_does(What::DeadlineOfTheDeadPasses, |client| client.set(DEAD));
        }
        if client.is(DEAF) && !crashed && client.phase != Phase::Done {
            self.client_does(What::InboxOpens, |client| client.clear(DEAF));
        }
    }

    fn faults(&mut self) {
        let (client, case) = (self.client(), self.case);
        let active = !matches!(client.phase, Phase::Idle | Phase::Done | Phase::Crashed);
        for fault in case.faults.iter().filter(|fault| fault.concerns(case.kind)) {
            let what = What::Fault(*fault);
            match fault {
                Fault::Crash if active => self.client_does(what, Client::crash),
                Fault::LostPush => {
                    for push in [PUSH, OUTRUN_PUSH, REFUSAL] {
                        if client.is(push) {
                            self.client_does(what, |client| client.clear(push));
                        }
                    }
                }
                Fault::InboxDown if active && !client.is(DEAF) => {
                    self.client_does(what, |client| {
                        client.clear(PUSHES);
                        client.set(DEAF);
                    });
                }
                Fault::Resend if client.phase == Phase::Asking => {
                    self.client_does(what, |client| client.resend_acquire(case));
                }
                Fault::Cancel if client.waits() => {
                    self.client_does(what, |client| client.end(case));
                }
                Fault::Purge if queued_alive(&client) && client.phase != Phase::Crashed => {
                    self.client_does(what, |client| client.set(DEAD));
                }
                Fault::Expiry if client.phase == Phase::Held => {
                    self.client_does(What::LosesHold, |client| client.end(case));
                }
                // The local deadline is not later than the server's (I2).
                Fault::Expiry if client.is(HOLDS) && client.phase != Phase::Crashed => {
                    self.client_does(what, |client| expire(client, case));
                }
                Fault::Limit if self.who == 0 => {
                    self.server_does(what, |server, _| server.change_limit());
                }
                Fault::Removal if client.is(QUEUED) => {
                    self.server_does(what, |server, who| server.remove(who));
                }
                Fault::Crash
                | Fault::InboxDown
                | Fault::Resend
                | Fault::Cancel
                | Fault::Purge
                | Fault::Expiry
                | Fault::Limit
                | Fault::Removal => {}
            }
        }
    }

    fn lost_answers(&mut self) {
        let (client, case) = (self.client(), self.case);
        if !case.faults.contains(&Fault::Resend) {
            return;
        }
        if client.check != Call::Unsent {
            self.client_does(What::LosesCheck, |client| client.give_check_up(case));
        }
        if client.renew != Call::Unsent {
            self.client_does(What::LosesRenew, |client| client.renew = Call::Unsent);
        }
        if client.release != Release::Unsent {
            self.client_does(What::LosesRelease, Client::resend_release);
        }
    }

    fn late_answers(&mut self) {
        let (client, case) = (self.client(), self.case);
        if !case.faults.contains(&Fault::Expiry) {
            return;
        }
        if client.acquire == Call::Taken {
            let hear = |client: &mut Client| client.hear_acquire_too_late(case);
            self.client_does(What::HearsAcquireTooLate, hear);
        }
        if client.is(PUSH) && client.waits() {
            self.client_does(What::HearsPushTooLate, Client::hear_push_too_late);
        }
        if client.check == Call::Taken && client.phase == Phase::Waiting {
            self.client_does(What::HearsCheckLate, Client::hear_check_late);
            let hear = |client: &mut Client| client.hear_check_too_late(case);
            self.client_does(What::HearsCheckTooLate, hear);
        }
    }
}

fn queued_alive(client: &Client) -> bool {
    client.is(QUEUED) && !client.is(DEAD)
}

/// The hold ends at the server, and with it what is on its way about it: whoever hears that sees by the deadline that
/// it is over.
fn expire(client: &mut Client, case: &Case) {
    client.clear(HOLDS);
    if !case.has(Mechanism::Deadline) {
        return;
    }
    for call in [&mut client.acquire, &mut client.check, &mut client.renew] {
        if *call == Call::Taken {
            *call = Call::Outrun;
        }
    }
    if client.is(PUSH) {
        client.clear(PUSH);
        client.set(OUTRUN_PUSH);
    }
}

/// What the server keeps and what the clients believe, in words.
pub(crate) fn describe(state: &State) -> String {
    let named = |flag: Flag| {
        let names: Vec<_> = state
            .by_ticket()
            .filter(|who| state.clients[*who].is(flag))
            .map(|who| (who + 1).to_string())
            .collect();
        if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
    };
    let held: Vec<_> = (0..CLIENTS)
        .filter(|who| state.clients[*who].phase == Phase::Held)
        .map(|who| (who + 1).to_string())
        .collect();
    let held = if held.is_empty() { "nobody".to_owned() } else { held.join(", ") };
    format!("server: held by {}, waiting {}; say held: {held}", named(HOLDS), named(QUEUED))
}
