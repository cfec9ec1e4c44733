//! What the agent counts: Velero's names for those who have dashboards already, and ours.

use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use parking_lot::Mutex;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bounds of the times that pod volume backups take, in seconds, as Velero has them.
const TIMES: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10800.0, 14400.0];
/// As many backups are told of one by one: the oldest are forgotten, or the page would grow as long as the agent runs.
const TOLD: usize = 500;

/// Everything that is counted.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Registry,
    outcomes: Vec<(Kind, Phase, IntCounter)>,
    /// Temporary objects by what is known of their operation.
    pub(crate) hosting_objects: IntGaugeVec,
    pub(crate) slots: IntGauge,
    pub(crate) slots_busy: IntGauge,
    pub(crate) movers_lost: IntCounter,
    pub(crate) requests: IntCounterVec,
    backups_begun: IntCounter,
    backups_ended: IntCounter,
    times: HistogramVec,
    last_times: GaugeVec,
    /// The backups that times are told of, oldest first.
    timed: Arc<Mutex<VecDeque<[String; 3]>>>,
}

impl Metrics {
    pub(crate) fn new(node: &str) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let mut outcomes = Vec::new();
        for (kind, name) in [(Kind::DataUpload, "data_upload"), (Kind::DataDownload, "data_download")] {
            for (phase, suffix, words) in [
                (Phase::Completed, "success", "completed"),
                (Phase::Failed, "failure", "failed"),
                (Phase::Canceled, "cancel", "canceled"),
            ] {
                let name = format!("podVolume_{name}_{suffix}_total");
                let help = format!("Number of {}s on this node that {words}", kind.name());
                let counter = IntCounter::with_opts(Opts::new(name, help).const_label("node", node))?;
                registry.register(Box::new(counter.clone()))?;
                outcomes.push((kind, phase, counter));
            }
        }
        let of_node = |name: &str, help: &str| {
            IntCounter::with_opts(Opts::new(format!("podVolume_{name}"), help).const_label("node", node))
        };
        let time = "podVolume_pod_volume_operation_latency_seconds";
        let labels = ["operation", "backupName", "pod_volume_backup"];
        let metrics = Self {
            registry: registry.clone(),
            outcomes,
            backups_begun: of_node(
                "pod_volume_backup_enqueue_count",
                "Number of PodVolumeBackups on this node whose data began to move",
            )?,
            backups_ended: of_node("pod_volume_backup_dequeue_count", "Number of those that have ended")?,
            times: HistogramVec::new(
                HistogramOpts::new(time, "How long PodVolumeBackups of this node took")
                    .const_label("node", node)
                    .buckets(TIMES.to_vec()),
                &labels,
            )?,
            last_times: GaugeVec::new(
                Opts::new(format!("{time}_gauge"), "The same as a number").const_label("node", node),
                &labels,
            )?,
            timed: Arc::default(),
            hosting_objects: IntGaugeVec::new(
                Opts::new(
                    "lifeboat_hosting_objects",
                    "Temporary objects in the cluster: those of an operation, orphans, and those that are overdue",
                ),
                &["state"],
            )?,
            slots: IntGauge::new("lifeboat_slots", "Volumes that this node may move at once")?,
            slots_busy: IntGauge::new("lifeboat_slots_busy", "Volumes that this node moves now")?,
            movers_lost: IntCounter::new("lifeboat_movers_lost_total", "Movers that were lost and replaced")?,
            requests: IntCounterVec::new(
                Opts::new("lifeboat_reconciles_total", "Looks at an operation, by what they came to"),
                &["kind", "action"],
            )?,
        };
        registry.register(Box::new(metrics.hosting_objects.clone()))?;
        registry.register(Box::new(metrics.slots.clone()))?;
        registry.register(Box::new(metrics.slots_busy.clone()))?;
        registry.register(Box::new(metrics.movers_lost.clone()))?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.backups_begun.clone()))?;
        registry.register(Box::new(metrics.backups_ended.clone()))?;
        registry.register(Box::new(metrics.times.clone()))?;
        registry.register(Box::new(metrics.last_times.clone()))?;
        Ok(metrics)
    }

    /// Counts an operation whose data begins to move.
    pub(crate) fn started(&self, kind: Kind) {
        if kind == Kind::PodVolumeBackup {
            self.backups_begun.inc();
        }
    }

    /// Notes how long an operation took, under Velero's names for it.
    pub(crate) fn took(&self, names: [String; 3], seconds: f64) {
        let labels = names.each_ref().map(String::as_str);
        self.times.with_label_values(&labels).observe(seconds);
        self.last_times.with_label_values(&labels).set(seconds);
        let mut timed = self.timed.lock();
        timed.push_back(names);
        if timed.len() > TOLD
            && let Some(oldest) = timed.pop_front()
        {
            let labels = oldest.each_ref().map(String::as_str);
            // That they are not there is what is wanted.
            let _ = self.times.remove_label_values(&labels);
            let _ = self.last_times.remove_label_values(&labels);
        }
    }

    /// Counts an operation that has ended; `had_begun` says whether its data had begun to move.
    pub(crate) fn ended(&self, kind: Kind, phase: Phase, had_begun: bool) {
        if kind == Kind::PodVolumeBackup && had_begun {
            self.backups_ended.inc();
        }
        let counter = self.outcomes.iter().find(|(of, with, _)| *of == kind && *with == phase);
        if let Some((_, _, counter)) = counter {
            counter.inc();
        }
    }

    /// The page that Prometheus reads.
    pub(crate) fn page(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        Ok(page)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pod_volume_backups_are_told_of_under_veleros_names_and_do_not_pile_up() {
        let metrics = Metrics::new("n1").unwrap();
        metrics.started(Kind::PodVolumeBackup);
        metrics.started(Kind::DataUpload);
        metrics.ended(Kind::PodVolumeBackup, Phase::Completed, true);
        metrics.ended(Kind::PodVolumeBackup, Phase::Canceled, false);
        for number in 0..TOLD + 10 {
            let name = format!("b-{number}");
            metrics.took([format!("{name}-default-shop-kopia-backup"), "velero/b".to_owned(), name], 7.0);
        }
        let page = String::from_utf8(metrics.page().unwrap()).unwrap();
        for line in [
            r#"podVolume_pod_volume_backup_enqueue_count{node="n1"} 1"#,
            r#"podVolume_pod_volume_backup_dequeue_count{node="n1"} 1"#,
            r#"podVolume_pod_volume_operation_latency_seconds_gauge{backupName="velero/b",node="n1",operation="b-10-default-shop-kopia-backup",pod_volume_backup="b-10"} 7"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
        }
        assert!(!page.contains("\"b-9\""), "the oldest are forgotten");
    }
}
