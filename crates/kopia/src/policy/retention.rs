//! Which snapshots a retention policy keeps, and why.

use super::RetentionPolicy;
use crate::manifest::ManifestId;
use crate::snapshot::SnapshotManifest;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp};
use std::collections::{HashMap, HashSet};

/// Incomplete snapshots younger than this (against the newest one) are kept: their upload may go on.
const INCOMPLETE_KEPT_FOR: SignedDuration = SignedDuration::from_hours(4);
/// So many incomplete snapshots are kept whatever their age.
const INCOMPLETE_KEPT: usize = 3;

/// What a retention policy says about one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retained {
    /// The snapshot.
    pub id: ManifestId,
    /// Why the policy keeps it: `latest-1`, `daily-3`, `incomplete`…
    pub reasons: Vec<String>,
    /// Whether a pin keeps it.
    pub pinned: bool,
}

impl Retained {
    /// Whether nothing keeps it.
    pub fn is_expired(&self) -> bool {
        self.reasons.is_empty() && !self.pinned
    }
}

/// What `policy` says about the `snapshots` of **one** source, in their order.
///
/// Cut-off dates and weeks are those of `time_zone`, years, months, days and hours those of UTC, as with Kopia.
pub fn compute_retention(
    snapshots: &[SnapshotManifest],
    policy: &RetentionPolicy,
    time_zone: &TimeZone,
) -> Vec<Retained> {
    let mut newest_first: Vec<usize> = (0..snapshots.len()).collect();
    newest_first.sort_by_key(|i| std::cmp::Reverse((snapshots[*i].start_time, snapshots[*i].end_time)));
    let retained =
        |s: &SnapshotManifest| Retained { id: s.id.clone(), reasons: Vec::new(), pinned: !s.pins.is_empty() };
    let mut result: Vec<Retained> = snapshots.iter().map(retained).collect();

    let latest_complete = snapshots.iter().filter(|s| s.is_complete()).map(|s| s.start_time).max();
    if let Some(latest) = latest_complete {
        let mut slots = Slots::new(policy, latest, time_zone);
        for (rank, i) in newest_first.iter().enumerate().filter(|(_, i)| snapshots[**i].is_complete()) {
            result[*i].reasons = slots.reasons(rank, snapshots[*i].start_time);
        }
    }
    let newest = newest_first.first().map(|i| snapshots[*i].start_time);
    for (rank, i) in newest_first.iter().enumerate().take_while(|(_, i)| !snapshots[**i].is_complete()) {
        let age = newest.map(|newest| newest.duration_since(snapshots[*i].start_time)).unwrap_or_default();
        if age >= INCOMPLETE_KEPT_FOR && rank >= INCOMPLETE_KEPT {
            break;
        }
        result[*i].reasons.push("incomplete".to_owned());
    }
    result
}

/// One counter of a policy: how many periods of a kind still have a place, and back to when.
struct Counter {
    kind: &'static str,
    /// Position in the list of reasons.
    order: u8,
    keep: i64,
    cutoff: Timestamp,
}

/// The counters while the snapshots pass by, the newest first.
struct Slots<'a> {
    counters: Vec<Counter>,
    used: HashMap<&'static str, i64>,
    /// Periods that have their snapshot. Kopia has one set for all kinds, in which the eighth week and August are
    /// both `2026-08`; what it keeps depends on that, and two programs that keep different snapshots of one
    /// source would between them keep too few.
    periods: HashSet<String>,
    time_zone: &'a TimeZone,
}

impl<'a> Slots<'a> {
    fn new(policy: &RetentionPolicy, latest: Timestamp, time_zone: &'a TimeZone) -> Self {
        let local = latest.to_zoned(time_zone.clone()).datetime();
        let back = |date: Option<Date>| {
            let at = date.map(|date| DateTime::from_parts(date, local.time()));
            at.and_then(|at| at.to_zoned(time_zone.clone()).ok()).map_or(Timestamp::MIN, |at| at.timestamp())
        };
        let days = |n: i64| back(days_after(local.date(), n.saturating_neg()));
        let hours = |n: i64| {
            let span = n.checked_mul(3600).map(SignedDuration::from_secs);
            span.and_then(|span| latest.checked_sub(span).ok()).unwrap_or(Timestamp::MIN)
        };
        let months = |n: Option<i64>| back(n.and_then(|n| months_before(local.date(), n)));
        let keep_latest = if keeps_everything(policy) { Some(i64::MAX) } else { policy.keep_latest };
        let cases = [
            ("latest", 0, keep_latest, Timestamp::MIN),
            ("annual", 5, policy.keep_annual, months(policy.keep_annual.unwrap_or(0).checked_mul(12))),
            ("monthly", 4, policy.keep_monthly, months(policy.keep_monthly)),
            ("weekly", 3, policy.keep_weekly, days(policy.keep_weekly.unwrap_or(0).saturating_mul(7))),
            ("daily", 2, policy.keep_daily, days(policy.keep_daily.unwrap_or(0))),
            ("hourly", 1, policy.keep_hourly, hours(policy.keep_hourly.unwrap_or(0))),
        ];
        let counters = cases
            .into_iter()
            .filter_map(|(kind, order, keep, cutoff)| Some(Counter { kind, order, keep: keep?, cutoff }))
            .collect();
        Slots { counters, used: HashMap::new(), periods: HashSet::new(), time_zone }
    }

    fn reasons(&mut self, rank: usize, start: Timestamp) -> Vec<String> {
        let mut reasons = Vec::new();
        for counter in &self.counters {
            let period = period(counter.kind, rank, start, self.time_zone);
            let used = self.used.entry(counter.kind).or_default();
            if start >= counter.cutoff && *used < counter.keep && self.periods.insert(period) {
                *used += 1;
                reasons.push((counter.order, format!("{}-{used}", counter.kind)));
            }
        }
        reasons.sort();
        reasons.into_iter().map(|(_, reason)| reason).collect()
    }
}

/// The name of the period of `kind` in which `start` lies.
fn period(kind: &str, rank: usize, start: Timestamp, time_zone: &TimeZone) -> String {
    let utc = start.to_zoned(TimeZone::UTC);
    let (year, month, day, hour) = (utc.year(), utc.month(), utc.day(), utc.hour());
    match kind {
        "annual" => format!("{year:04}"),
        "monthly" => format!("{year:04}-{month:02}"),
        "weekly" => {
            let week = start.to_zoned(time_zone.clone()).date().iso_week_date();
            format!("{:04}-{:02}", week.year(), week.week())
        }
        "daily" => format!("{year:04}-{month:02}-{day:02}"),
        "hourly" => format!("{year:04}-{month:02}-{day:02} {hour:02}"),
        _ => rank.to_string(),
    }
}

/// All counters zero or unset: everything is kept.
fn keeps_everything(policy: &RetentionPolicy) -> bool {
    let counts = [
        policy.keep_latest,
        policy.keep_hourly,
        policy.keep_daily,
        policy.keep_weekly,
        policy.keep_monthly,
        policy.keep_annual,
    ];
    counts.iter().flatten().map(|count| i128::from(*count)).sum::<i128>() == 0
}

/// The date `n` months earlier as Go counts: a day that the month does not have runs over into the next month.
fn months_before(date: Date, n: i64) -> Option<Date> {
    let month = i64::from(date.year()) * 12 + i64::from(date.month()) - 1;
    let month = month.checked_sub(n)?;
    let year = i16::try_from(month.div_euclid(12)).ok()?;
    let first = Date::new(year, i8::try_from(month.rem_euclid(12) + 1).ok()?, 1).ok()?;
    days_after(first, i64::from(date.day()) - 1)
}

fn days_after(date: Date, n: i64) -> Option<Date> {
    date.checked_add(Span::new().try_days(n).ok()?).ok()
}
