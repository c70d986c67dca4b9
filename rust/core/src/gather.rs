//! Joins what the threads of a trial tell: intervals by addition, reports by sum.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::{ClosedInterval, ThreadEvent, ThreadReport};
use crate::record::{Interval, Phase};

/// What all threads together left behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadReport {
    /// What the threads of each instance left behind.
    pub instances: Vec<InstanceReport>,
    /// Reasons of connections that could not be made.
    pub refused: Vec<String>,
    /// Reasons of clients lost while running.
    pub lost: Vec<String>,
    /// Clients whose last transaction has an unknown end.
    pub unfinished: u32,
    /// Arrivals that no client had come to when the window ended.
    pub unserved: u64,
    /// How late transactions started, interval by interval of the window; empty in a closed loop.
    pub lags: Vec<Lag>,
    /// CPU time of all threads within the window.
    pub cpu_in_window: Duration,
    /// From the first connection attempt until all clients were connected.
    pub connect: Duration,
    /// From the first connection attempt until all threads had closed their connections.
    pub connected_window: Duration,
}

/// How late the transactions of one interval started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lag {
    /// Seconds from the start of the load to the start of the interval.
    pub start_s: f64,
    /// Mean over the transactions that ended in it, in milliseconds.
    pub mean_ms: f64,
    /// How many those are.
    pub count: u64,
}

/// What the threads of one instance left behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InstanceReport {
    /// Committed transactions of the whole load.
    pub committed_all: u64,
    /// Committed transactions within the window, as the clients counted them.
    pub counted_by_clients: u64,
    /// Transactions that were to start within the window; 0 in a closed loop.
    pub scheduled: u64,
    /// Length of the window.
    pub window: Duration,
    /// From the start of the load until the last of its threads started its first transaction.
    pub started_after: Duration,
}

/// Gathers the events of a number of threads.
#[derive(Debug)]
pub struct Gatherer {
    threads: Vec<ThreadState>,
    /// Intervals that some thread has not closed yet, by number and instance.
    open: BTreeMap<(u32, u32), Interval>,
    report: LoadReport,
}

#[derive(Debug, Clone, Copy, Default)]
struct ThreadState {
    instance: u32,
    connected: bool,
    /// Intervals closed so far.
    closed: u32,
    ended: bool,
}

impl Gatherer {
    /// A gatherer for threads that belong to the given instances, from 0.
    pub fn new(instance_of_thread: impl Iterator<Item = u32>) -> Self {
        let state = |instance| ThreadState { instance, ..ThreadState::default() };
        let threads: Vec<_> = instance_of_thread.map(state).collect();
        let instances = threads.iter().map(|thread| thread.instance + 1).max().unwrap_or(0);
        let instances = vec![InstanceReport::default(); instances as usize];
        let report = LoadReport { instances, ..LoadReport::default() };
        Self { threads, open: BTreeMap::new(), report }
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

    /// Takes one event of one thread; returns the intervals that are whole now, in order: all
    /// instances of one interval, then those of the next.
    pub fn take(&mut self, thread: usize, event: ThreadEvent) -> Vec<Interval> {
        let state = &mut self.threads[thread];
        match event {
            ThreadEvent::Connected { refused } => {
                state.connected = true;
                self.report.refused.extend(refused);
            }
            ThreadEvent::Interval(closed) => {
                state.closed = closed.span.index + 1;
                let instance = state.instance;
                self.merge(instance, *closed);
            }
            ThreadEvent::Ended(report) => {
                state.ended = true;
                let instance = state.instance;
                self.add(instance, *report);
            }
        }
        let mut whole = Vec::new();
        while let Some(entry) = self.open.first_entry() {
            let (index, _) = *entry.key();
            if self.threads.iter().any(|thread| thread.closed <= index && !thread.ended) {
                break;
            }
            let interval = entry.remove();
            if let Some(open) = interval.open.as_ref().filter(|_| interval.phase == Phase::Measure)
            {
                let (start_s, mean_ms) = (interval.start_s, open.lag_ns.mean() / 1e6);
                self.report.lags.push(Lag { start_s, mean_ms, count: open.lag_ns.len() });
            }
            whole.push(interval);
        }
        whole
    }

    /// What all threads together left behind.
    pub fn finish(self) -> LoadReport {
        self.report
    }

    fn merge(&mut self, instance: u32, closed: ClosedInterval) {
        let ClosedInterval { span, service_time_ns, open } = closed;
        let interval = Interval {
            instance,
            phase: span.phase,
            start_s: span.start.as_secs_f64(),
            length_s: span.length.as_secs_f64(),
            outcomes: span.outcomes,
            live_clients: span.live_clients,
            service_time_ns,
            open,
        };
        match self.open.get_mut(&(span.index, instance)) {
            None => {
                self.open.insert((span.index, instance), interval);
            }
            Some(of_others) => of_others.merge(&interval).expect("all histograms are alike"),
        }
    }

    fn add(&mut self, instance: u32, report: ThreadReport) {
        self.report.lost.extend(report.lost);
        self.report.unfinished += report.unfinished;
        self.report.cpu_in_window += report.cpu_in_window;
        self.report.unserved += report.unserved;
        let instance = &mut self.report.instances[instance as usize];
        instance.committed_all += report.committed_all;
        instance.counted_by_clients += report.committed_by_client.iter().sum::<u64>();
        instance.scheduled += report.scheduled;
        instance.window = instance.window.max(report.window);
        instance.started_after = instance.started_after.max(report.started_after);
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
            open: None,
        }))
    }

    #[test]
    fn an_interval_is_whole_when_every_thread_has_closed_it() {
        let mut gatherer = Gatherer::new([0, 0].into_iter());
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

    #[test]
    fn instances_are_kept_apart_and_handed_on_together() {
        let mut gatherer = Gatherer::new([0, 0, 1].into_iter());
        assert!(gatherer.take(0, interval(0, 3)).is_empty());
        assert!(gatherer.take(1, interval(0, 4)).is_empty());
        let whole = gatherer.take(2, interval(0, 9));
        let parts: Vec<_> =
            whole.iter().map(|part| (part.instance, part.outcomes.committed)).collect();
        assert_eq!(parts, [(0, 7), (1, 9)]);
        for (thread, committed_all) in [(0, 10), (1, 20), (2, 40)] {
            let report = ThreadReport {
                committed_all,
                committed_by_client: vec![committed_all, 1],
                window: Duration::from_secs(committed_all),
                started_after: Duration::from_millis(committed_all),
                ..ThreadReport::default()
            };
            gatherer.take(thread, ThreadEvent::Ended(Box::new(report)));
        }
        let instances = gatherer.finish().instances;
        let of = |committed_all, counted_by_clients, last| InstanceReport {
            committed_all,
            counted_by_clients,
            scheduled: 0,
            window: Duration::from_secs(last),
            started_after: Duration::from_millis(last),
        };
        assert_eq!(instances, [of(30, 32, 20), of(40, 41, 40)]);
    }
}
