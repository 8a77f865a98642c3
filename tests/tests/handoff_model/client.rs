//! What a process does with answers and pushes (leasehold-runtime: acquire.rs, session/{registry,grant,check,end}.rs).

use super::case::{Case, Kind, Mechanism};
use super::state::{
    Call, Client, DOUBTFUL, OUTRUN_PUSH, PUSH, Phase, REFUSAL, Release, STRAY_CHECK,
    STRAY_CHECK_TO_TAIL, STRAY_RELEASE, STRAY_RELEASE_LATE, TICKET,
};

impl Client {
    /// Attempt::enter and the first sending.
    pub(crate) fn ask(&mut self) {
        self.phase = Phase::Asking;
        self.acquire = Call::Sent;
    }

    /// Attempt::read.
    pub(crate) fn hear_acquire(&mut self, case: &Case) {
        match std::mem::replace(&mut self.acquire, Call::Unsent) {
            Call::Taken => self.win(),
            Call::Queued => {
                self.phase = Phase::Waiting;
                self.set(TICKET);
            }
            // ValidityTooShort: the attempt is dropped, and with it ended.
            Call::Outrun => self.end(case),
            Call::Refused => self.end_if_late(case),
            Call::Unsent | Call::Sent | Call::SentToTail => {}
        }
    }

    /// Granter::pushed. An id that is not waiting drops it.
    pub(crate) fn hear_push(&mut self, case: &Case, outrun: bool) {
        self.clear(if outrun { OUTRUN_PUSH } else { PUSH });
        match self.phase {
            Phase::Asking | Phase::Waiting if outrun || case.fixed => self.confirm_first(),
            Phase::Asking | Phase::Waiting => self.win_unasked(),
            Phase::Held if !case.has(Mechanism::RegistryRule) => self.set(STRAY_RELEASE),
            Phase::Held | Phase::Idle | Phase::Ending | Phase::Done | Phase::Crashed => {}
        }
    }

    /// Granter::refused.
    pub(crate) fn hear_refusal(&mut self, case: &Case) {
        self.clear(REFUSAL);
        if !self.waits() {
            return;
        }
        // A check may have put it back since; what an operator took out stays out by its mark.
        let stays = matches!(case.kind, Kind::Semaphore { .. });
        if stays && case.has(Mechanism::RefusalEnded) {
            self.end(case);
        } else {
            self.end_if_late(case);
        }
    }

    /// check::settle.
    pub(crate) fn hear_check(&mut self, case: &Case) {
        let answer = std::mem::replace(&mut self.check, Call::Unsent);
        if self.phase != Phase::Waiting {
            return;
        }
        match answer {
            Call::Taken if case.fixed => self.confirm_first(),
            Call::Taken => self.win(),
            Call::Outrun => self.clear(TICKET),
            Call::Queued => self.set(TICKET),
            Call::Refused => self.end_if_late(case),
            Call::Unsent | Call::Sent | Call::SentToTail => {}
        }
    }

    /// The answer came so late that the local deadline has passed: as if the hold had ended at the server too.
    pub(crate) fn hear_acquire_too_late(&mut self, case: &Case) {
        self.acquire = Call::Outrun;
        self.hear_acquire(case);
    }

    /// The push came so late that too little is left.
    pub(crate) fn hear_push_too_late(&mut self) {
        self.clear(PUSH);
        if self.waits() {
            self.confirm_first();
        }
    }

    /// The answer came so late that too little is left.
    pub(crate) fn hear_check_late(&mut self) {
        self.check = Call::Unsent;
        if self.phase == Phase::Waiting {
            self.confirm_first();
        }
    }

    /// Or nothing.
    pub(crate) fn hear_check_too_late(&mut self, case: &Case) {
        self.check = Call::Outrun;
        self.hear_check(case);
    }

    fn confirm_first(&mut self) {
        if self.renew == Call::Unsent {
            self.renew = Call::Sent;
        }
    }

    /// grant::confirm.
    pub(crate) fn hear_renew(&mut self) {
        let answer = std::mem::replace(&mut self.renew, Call::Unsent);
        if !self.waits() {
            return;
        }
        match answer {
            Call::Taken => self.win_unasked(),
            // It has had its turn: to the tail.
            Call::Outrun | Call::Refused => self.clear(TICKET),
            Call::Unsent | Call::Sent | Call::SentToTail | Call::Queued => {}
        }
    }

    pub(crate) fn send_check(&mut self) {
        self.check = if self.is(TICKET) { Call::Sent } else { Call::SentToTail };
    }

    fn win(&mut self) {
        self.phase = Phase::Held;
        self.clear(TICKET);
    }

    /// A grant that comes before the answer to the acquire: nobody will hear that answer.
    fn win_unasked(&mut self) {
        if self.acquire != Call::Unsent {
            self.set(DOUBTFUL);
        }
        self.abandon_acquire();
        self.win();
    }

    /// A call that nobody listens to any more; if it is still on its way, it may arrive.
    fn abandon_acquire(&mut self) {
        if std::mem::replace(&mut self.acquire, Call::Unsent) == Call::Sent {
            self.stray_acquires += 1;
            assert!(self.stray_acquires < 4, "two bits: {self:?}");
        }
    }

    fn abandon_check(&mut self) {
        match std::mem::replace(&mut self.check, Call::Unsent) {
            Call::Sent => self.set(STRAY_CHECK),
            Call::SentToTail => self.set(STRAY_CHECK_TO_TAIL),
            Call::Unsent | Call::Taken | Call::Outrun | Call::Queued | Call::Refused => {}
        }
    }

    fn abandon_release(&mut self) {
        match std::mem::replace(&mut self.release, Release::Unsent) {
            Release::Sent => self.set(STRAY_RELEASE),
            Release::SentLate => self.set(STRAY_RELEASE_LATE),
            Release::Unsent | Release::Answered => {}
        }
    }

    /// It may still arrive: an acquire, a check, or an earlier copy of one.
    fn is_late(&self, case: &Case) -> bool {
        let checking = self.check != Call::Unsent && case.has(Mechanism::LateByCheck);
        self.is(DOUBTFUL) || self.acquire != Call::Unsent || checking
    }

    /// The server has said that it keeps nothing of it (Attempt::nothing_left, Granter::refuse).
    fn end_if_late(&mut self, case: &Case) {
        if self.is_late(case) {
            self.end(case);
        } else {
            self.forget();
        }
    }

    /// A release, a cancel, the end of what was lost: Tracked::end, then the call.
    pub(crate) fn end(&mut self, case: &Case) {
        let late = self.is_late(case);
        self.phase = Phase::Ending;
        self.release = if late { Release::SentLate } else { Release::Sent };
        self.clear(DOUBTFUL | TICKET);
        self.abandon_acquire();
    }

    pub(crate) fn forget(&mut self) {
        self.release = Release::Unsent;
        self.phase = Phase::Done;
        self.clear(DOUBTFUL | TICKET);
    }

    /// No answer: doubt, and again (delivery.rs).
    pub(crate) fn resend_acquire(&mut self, case: &Case) {
        self.abandon_acquire();
        self.doubt(case);
        self.acquire = Call::Sent;
    }

    /// No answer; the next check is a new one.
    pub(crate) fn give_check_up(&mut self, case: &Case) {
        self.abandon_check();
        if self.phase == Phase::Waiting || self.phase == Phase::Held {
            self.doubt(case);
        }
    }

    fn doubt(&mut self, case: &Case) {
        if case.has(Mechanism::LateByResend) {
            self.set(DOUBTFUL);
        }
    }

    pub(crate) fn resend_release(&mut self) {
        let late = self.release == Release::SentLate;
        self.abandon_release();
        self.release = if late { Release::SentLate } else { Release::Sent };
    }

    /// The process dies; what it has sent may still arrive.
    pub(crate) fn crash(&mut self) {
        self.abandon_acquire();
        self.abandon_check();
        self.abandon_release();
        self.phase = Phase::Crashed;
        self.clear(DOUBTFUL | TICKET);
    }
}
