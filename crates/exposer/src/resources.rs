//! What a hosting pod may use.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lifeboat_api::config::PodResources;
use std::collections::BTreeMap;

/// Why resources cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Not a quantity.
    #[error(
        "podResources: {name} of {value:?} is not a quantity: write for example \"500m\", \"1\", \"256Mi\" or \"1Gi\""
    )]
    NotAQuantity {
        /// The resource.
        name: &'static str,
        /// What was written.
        value: String,
    },
    /// More is requested than may be used.
    #[error("podResources: the request of {request} for {name} is above its limit of {limit}")]
    AboveLimit {
        /// The resource.
        name: &'static str,
        /// The request.
        request: String,
        /// The limit.
        limit: String,
    },
}

/// The resources of a hosting pod; what is not given, or zero, has no bound.
///
/// # Errors
/// If something is not a quantity or a request is above its limit.
pub fn pod_resources(configured: &PodResources) -> Result<ResourceRequirements, ResourceError> {
    let mut requests = BTreeMap::new();
    let mut limits = BTreeMap::new();
    for (name, request, limit) in [
        ("cpu", &configured.cpu_request, &configured.cpu_limit),
        ("memory", &configured.memory_request, &configured.memory_limit),
        ("ephemeral-storage", &configured.ephemeral_storage_request, &configured.ephemeral_storage_limit),
    ] {
        let amount = |value: &String| {
            nano(value).ok_or_else(|| ResourceError::NotAQuantity { name, value: value.clone() })
        };
        let (requested, limited) = (amount(request)?, amount(limit)?);
        if limited > 0 && requested > limited {
            return Err(ResourceError::AboveLimit { name, request: request.clone(), limit: limit.clone() });
        }
        for (amount, value, bounds) in [(requested, request, &mut requests), (limited, limit, &mut limits)] {
            if amount > 0 {
                bounds.insert(name.to_owned(), Quantity(value.trim().to_owned()));
            }
        }
    }
    let some = |bounds: BTreeMap<_, _>| Some(bounds).filter(|bounds| !bounds.is_empty());
    Ok(ResourceRequirements {
        requests: some(requests),
        limits: some(limits),
        ..ResourceRequirements::default()
    })
}

/// A quantity in thousand-millionths, which is as fine as Kubernetes counts; an empty text is zero.
pub(crate) fn nano(text: &str) -> Option<u128> {
    let text = text.trim();
    if text.is_empty() {
        return Some(0);
    }
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let billionths = digits(fraction)? * 10u128.pow(9 - u32::try_from(fraction.len()).ok()?);
    let value = digits(whole)?.checked_mul(1_000_000_000)?.checked_add(billionths)?;
    let thousand = |power: u32| value.checked_mul(10u128.checked_pow(3 * power)?);
    let binary = |power: u32| value.checked_mul(1u128 << (10 * power));
    match suffix {
        "" => Some(value),
        "n" => Some(value / 1_000_000_000),
        "u" => Some(value / 1_000_000),
        "m" => Some(value / 1_000),
        "k" => thousand(1),
        "M" => thousand(2),
        "G" => thousand(3),
        "T" => thousand(4),
        "P" => thousand(5),
        "E" => thousand(6),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            match exponent.strip_prefix('-') {
                Some(exponent) => Some(value / 10u128.checked_pow(exponent.parse().ok()?)?),
                None => value.checked_mul(
                    10u128.checked_pow(exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?)?,
                ),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn resources(cpu: [&str; 2], memory: [&str; 2]) -> PodResources {
        PodResources {
            cpu_request: cpu[0].into(),
            cpu_limit: cpu[1].into(),
            memory_request: memory[0].into(),
            memory_limit: memory[1].into(),
            ..PodResources::default()
        }
    }

    #[test]
    fn what_is_given_is_set_and_zero_means_no_bound() {
        let resources = pod_resources(&resources(["500m", "0"], ["", "1Gi"])).unwrap();
        assert_eq!(resources.requests, Some(BTreeMap::from([("cpu".to_owned(), Quantity("500m".into()))])));
        assert_eq!(resources.limits, Some(BTreeMap::from([("memory".to_owned(), Quantity("1Gi".into()))])));
        assert_eq!(pod_resources(&PodResources::default()).unwrap(), ResourceRequirements::default());
    }

    #[test]
    fn a_request_above_its_limit_is_refused_whatever_the_units() {
        let error = pod_resources(&resources(["1500m", "1.2"], ["", ""])).unwrap_err().to_string();
        assert!(error.contains("cpu") && error.contains("1500m"), "{error}");
        assert!(pod_resources(&resources(["", ""], ["1Gi", "1G"])).is_err());
        assert!(pod_resources(&resources(["", ""], ["1G", "1Gi"])).is_ok());
        assert!(pod_resources(&resources(["1e3m", ""], ["", ""])).is_err());
        assert!(pod_resources(&resources(["1", "1E0"], ["1e9", "1000M"])).is_ok());
    }

    #[test]
    fn what_is_no_quantity_is_named() {
        for value in
            ["lots", "1 Gi", "-1", "1.2.3", ".", "1GB", "99999999999999999999999999999999999999999", "1e400"]
        {
            let error = pod_resources(&resources(["", ""], ["", value])).unwrap_err().to_string();
            assert!(error.contains("memory") && error.contains(value), "{error}");
        }
    }
}
