//! Joins what the threads of a trial tell: intervals by addition, reports by sum.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::{ClosedInterval, ThreadEvent, ThreadReport};
use crate::record::Interval;

/// What all threads together left behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadReport {
    /// Committed transactions of the whole load.
    pub committed_all: u64,
    /// Committed transactions within the window, per client.
    pub committed_by_client: Vec<u64>,
    /// Reasons of connections that could not be made.
    pub refused: Vec<String>,
    /// Reasons of clients lost while running.
    pub lost: Vec<String>,
    /// Clients whose last transaction has an unknown end.
    pub unfinished: u32,
    /// CPU time of all threads within the window.
    pub cpu_in_window: Duration,
    /// Length of the window.
    pub window: Duration,
    /// From the first connection attempt until all clients were connected.
    pub connect: Duration,
    /// From the first connection attempt until all threads had closed their connections.
    pub connected_window: Duration,
}

/// Gathers the events of a number of threads.
#[derive(Debug)]
pub struct Gatherer {
    threads: Vec<ThreadState>,
    /// Intervals that some thread has not closed yet, by number.
    open: BTreeMap<u32, Interval>,
    report: LoadReport,
}

#[derive(Debug, Clone, Copy, Default)]
struct ThreadState {
    connected: bool,
    /// Intervals closed so far.
    closed: u32,
    ended: bool,
}

impl Gatherer {
    /// A gatherer for `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self {
            threads: vec![ThreadState::default(); threads],
            open: BTreeMap::new(),
            report: LoadReport::default(),
        }
    }

    /// Whether every thread has tried all its connections.
    pub fn all_connected(&self) -> bool {
        self.threads.iter().all(|thread| thread.connected)
    }

    /// Whether every thread has ended.
    pub fn all_ended(&self) -> bool {
        self.threads.iter().all(|thread| thread.ended)
    }

    /// Connections refused so far.
    pub fn refused(&self) -> &[String] {
        &self.report.refused
    }

    /// Takes one event of one thread; returns the intervals that are whole now, in order.
    pub fn take(&mut self, thread: usize, event: ThreadEvent) -> Vec<Interval> {
        let state = &mut self.threads[thread];
        match event {
            ThreadEvent::Connected { refused } => {
                state.connected = true;
                self.report.refused.extend(refused);
            }
            ThreadEvent::Interval(closed) => {
                state.closed = closed.span.index + 1;
                self.merge(*closed);
            }
            ThreadEvent::Ended(report) => {
                state.ended = true;
                self.add(*report);
            }
        }
        let mut whole = Vec::new();
        while let Some(entry) = self.open.first_entry() {
            let index = *entry.key();
            if self.threads.iter().any(|thread| thread.closed <= index && !thread.ended) {
                break;
            }
            whole.push(entry.remove());
        }
        whole
    }

    /// What all threads together left behind.
    pub fn finish(self) -> LoadReport {
        self.report
    }

    fn merge(&mut self, closed: ClosedInterval) {
        let ClosedInterval { span, service_time_ns } = closed;
        match self.open.get_mut(&span.index) {
            None => {
                let interval = Interval {
                    phase: span.phase,
                    start_s: span.start.as_secs_f64(),
                    length_s: span.length.as_secs_f64(),
                    outcomes: span.outcomes,
                    live_clients: span.live_clients,
                    service_time_ns,
                };
                self.open.insert(span.index, interval);
            }
            Some(interval) => {
                interval.length_s = interval.length_s.max(span.length.as_secs_f64());
                interval.outcomes.merge(&span.outcomes);
                interval.live_clients += span.live_clients;
                interval.service_time_ns += &service_time_ns;
            }
        }
    }

    fn add(&mut self, report: ThreadReport) {
        self.report.committed_all += report.committed_all;
        self.report.committed_by_client.extend(report.committed_by_client);
        self.report.lost.extend(report.lost);
        self.report.unfinished += report.unfinished;
        self.report.cpu_in_window += report.cpu_in_window;
        self.report.window = self.report.window.max(report.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{IntervalSpan, histogram};
    use crate::record::{Outcomes, Phase};

    fn interval(index: u32, committed: u64) -> ThreadEvent {
        let mut service_time_ns = histogram();
        service_time_ns.record_n(2_000_000, committed).expect("in range");
        ThreadEvent::Interval(Box::new(ClosedInterval {
            span: IntervalSpan {
                index,
                phase: Phase::Measure,
                start: Duration::from_secs(u64::from(index)),
                length: Duration::from_secs(1),
                outcomes: Outcomes { committed, ..Outcomes::default() },
                live_clients: 2,
            },
            service_time_ns,
        }))
    }

    #[test]
    fn an_interval_is_whole_when_every_thread_has_closed_it() {
        let mut gatherer = Gatherer::new(2);
        assert!(gatherer.take(0, interval(0, 3)).is_empty());
        assert!(gatherer.take(0, interval(1, 4)).is_empty());
        // A thread that ends closes no more, but what it closed still waits for the other.
        assert!(gatherer.take(0, ThreadEvent::Ended(Box::default())).is_empty());
        let whole = gatherer.take(1, interval(0, 5));
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].outcomes.committed, 8);
        assert_eq!(whole[0].service_time_ns.len(), 8);
        assert_eq!(whole[0].live_clients, 4);
        let rest = gatherer.take(1, ThreadEvent::Ended(Box::default()));
        assert_eq!(
            rest.iter().map(|interval| interval.outcomes.committed).collect::<Vec<_>>(),
            [4]
        );
        assert!(gatherer.all_ended());
    }
}
