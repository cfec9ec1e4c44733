//! Which files the policy wants compressed.

use lifeboat_kopia::policy::CompressionPolicy;

/// The compressor for a file, empty for none: by the extension of its name (with the dot, as Kopia compares it) and
/// its size.
pub(crate) fn compressor_for<'a>(policy: &'a CompressionPolicy, name: &str, size: u64) -> &'a str {
    let extension = name.rfind('.').map_or("", |dot| &name[dot..]);
    let listed = |list: &[String]| list.iter().any(|entry| entry == extension);
    let limit = |limit: i64| u64::try_from(limit).ok().filter(|limit| *limit > 0);
    let wanted = policy.compressor != "none"
        && limit(policy.min_size).is_none_or(|least| size >= least)
        && limit(policy.max_size).is_none_or(|most| size <= most)
        && !listed(&policy.never_compress)
        && (policy.only_compress.is_empty() || listed(&policy.only_compress));
    if wanted { &policy.compressor } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_and_size_decide() {
        let policy = CompressionPolicy {
            compressor: "zstd".into(),
            never_compress: vec![".zip".into()],
            min_size: 10,
            max_size: 1000,
            ..CompressionPolicy::default()
        };
        assert_eq!(compressor_for(&policy, "a.txt", 100), "zstd");
        assert_eq!(compressor_for(&policy, "no extension", 100), "zstd");
        assert_eq!(compressor_for(&policy, "a.tar.zip", 100), "");
        assert_eq!(compressor_for(&policy, "a.txt", 9), "");
        assert_eq!(compressor_for(&policy, "a.txt", 1001), "");
        let only = CompressionPolicy { only_compress: vec![".log".into()], ..policy };
        assert_eq!(compressor_for(&only, "a.txt", 100), "");
        assert_eq!(compressor_for(&only, "a.log", 100), "zstd");
        let none = CompressionPolicy { compressor: "none".into(), ..CompressionPolicy::default() };
        assert_eq!(compressor_for(&none, "a.txt", 100), "");
    }
}
