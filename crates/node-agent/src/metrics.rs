//! What the agent counts: Velero's names for those who have dashboards already, and ours.

use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

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
        let metrics = Self {
            registry: registry.clone(),
            outcomes,
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
        Ok(metrics)
    }

    /// Counts an operation that has ended.
    pub(crate) fn ended(&self, kind: Kind, phase: Phase) {
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
