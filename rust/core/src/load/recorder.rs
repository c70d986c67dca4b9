//! A thread's own record of what its clients did, second by second.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{Failure, IntervalSpan};
use crate::record::{OpenTimes, Outcomes, Phase};

/// Smallest service time that is told apart from zero.
const SERVICE_TIME_NS_LOWEST: u64 = 1_000;
/// Largest service time that is recorded in full: one hour; above it values are clipped and counted.
const SERVICE_TIME_NS_HIGHEST: u64 = 3_600_000_000_000;

/// An empty histogram of service times in nanoseconds: 1 µs to 1 h with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(SERVICE_TIME_NS_LOWEST, SERVICE_TIME_NS_HIGHEST, 3)
        .expect("the bounds are valid")
}

/// A closed interval of one thread.
#[derive(Debug, Clone)]
pub struct ClosedInterval {
    /// Position, counts.
    pub span: IntervalSpan,
    /// Service times in nanoseconds of committed transactions.
    pub service_time_ns: Histogram<u64>,
    /// Their times from when they were to start; none in a closed loop.
    pub open: Option<OpenTimes>,
}

/// Counts and times of the current interval.
///
/// Intervals are a second long and start anew where measuring starts, so that the window is made of
/// whole intervals; the last one of a phase may be shorter.
pub(super) struct Recorder {
    zero: Instant,
    window_start: Duration,
    window_end: Option<Duration>,
    current: ClosedInterval,
    current_end: Instant,
}

impl Recorder {
    pub(super) fn new(
        zero: Instant,
        warmup: Duration,
        window: Option<Duration>,
        open: bool,
    ) -> Self {
        let window_end = window.map(|window| warmup + window);
        let mut recorder = Self {
            zero,
            window_start: warmup,
            window_end,
            current: ClosedInterval {
                span: IntervalSpan {
                    index: 0,
                    phase: Phase::Warmup,
                    start: Duration::ZERO,
                    length: Duration::ZERO,
                    outcomes: Outcomes::default(),
                    live_clients: 0,
                },
                service_time_ns: histogram(),
                open: open.then(OpenTimes::empty),
            },
            current_end: zero,
        };
        recorder.position(0, Duration::ZERO);
        recorder
    }

    /// End of the current interval.
    pub(super) fn current_end(&self) -> Instant {
        self.current_end
    }

    /// Whether the current interval belongs to the measured window.
    pub(super) fn measuring(&self) -> bool {
        self.current.span.phase == Phase::Measure
    }

    /// End of the window, unless it ends with the last transaction.
    pub(super) fn window_end(&self) -> Option<Instant> {
        self.window_end.map(|end| self.zero + end)
    }

    /// Start of the window.
    pub(super) fn window_start(&self) -> Instant {
        self.zero + self.window_start
    }

    /// Counts a transaction that started `lag` after it was to.
    pub(super) fn committed(&mut self, service: Duration, lag: Duration) {
        self.current.span.outcomes.committed += 1;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.current.service_time_ns.saturating_record(ns(service));
        if let Some(open) = &mut self.current.open {
            open.lag_ns.saturating_record(ns(lag));
            open.response_time_ns.saturating_record(ns(service + lag));
        }
    }

    pub(super) fn retried(&mut self) {
        self.current.span.outcomes.retried += 1;
    }

    /// Failures are rare, so counting them may allocate.
    pub(super) fn failed(&mut self, failure: &Failure) {
        *self.current.span.outcomes.failed.entry(failure.sqlstate.clone()).or_default() += 1;
    }

    /// Closes the current interval and opens the next one; `None` once the window is over.
    pub(super) fn close(&mut self, live_clients: u32) -> Box<ClosedInterval> {
        self.current.span.live_clients = live_clients;
        let closed = Box::new(self.current.clone());
        let next_start = self.current.span.start + self.current.span.length;
        self.position(self.current.span.index + 1, next_start);
        closed
    }

    /// Closes the current interval early, at `now`: the last one of a window without a fixed end.
    pub(super) fn close_at(&mut self, now: Instant, live_clients: u32) -> Box<ClosedInterval> {
        let start = self.zero + self.current.span.start;
        self.current.span.length = now.saturating_duration_since(start);
        self.close(live_clients)
    }

    /// Whether the whole window has been closed.
    pub(super) fn over(&self) -> bool {
        self.window_end.is_some_and(|end| self.current.span.start >= end)
    }

    fn position(&mut self, index: u32, start: Duration) {
        let phase = if start < self.window_start { Phase::Warmup } else { Phase::Measure };
        let phase_end = match phase {
            Phase::Warmup => Some(self.window_start),
            _ => self.window_end,
        };
        let end = phase_end.map_or(start + Duration::from_secs(1), |phase_end| {
            (start + Duration::from_secs(1)).min(phase_end.max(start))
        });
        self.current.span.index = index;
        self.current.span.phase = phase;
        self.current.span.start = start;
        self.current.span.length = end - start;
        self.current.span.outcomes = Outcomes::default();
        self.current.service_time_ns.reset();
        if let Some(open) = &mut self.current.open {
            open.lag_ns.reset();
            open.response_time_ns.reset();
        }
        self.current_end = self.zero + end;
    }
}
