use super::*;

const ALL: &str = r#"{"loadConcurrency":{"globalConfig":1,"perNodeConfig":[{"nodeSelector":{"matchLabels":{"tier":"big"}},"number":4}],"prepareQueueLength":8},
 "loadAffinity":[{"nodeSelector":{"matchExpressions":[{"key":"tier","operator":"In","values":["big"]}]},"storageClass":"gold-snap"}],
 "backupPVC":{"gold":{"storageClass":"gold-snap","readOnly":true,"spcNoRelabeling":true,"annotations":{"example.org/x":"1"}}},
 "restorePVC":{"ignoreDelayBinding":true},
 "podResources":{"cpuRequest":"500m","cpuLimit":"1","memoryRequest":"256Mi","memoryLimit":"1Gi"},
 "priorityClassName":"backup-low","privilegedFsBackup":false,"cachePVC":{"storageClass":"fast","residentThresholdInMB":1024},
 "podAnnotations":{"a":"b"},"podLabels":{"c":"d"}}"#;

fn node_agent(text: &str) -> Result<Settings<NodeAgentConfig>, ConfigError> {
    read("config.json", text)
}

#[test]
fn every_setting_is_read() {
    let Settings { value, warnings } = node_agent(ALL).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(value.load_concurrency.prepare_queue_length, 8);
    assert_eq!(value.load_concurrency.per_node_config[0].number, 4);
    assert_eq!(
        value.load_concurrency.per_node_config[0].node_selector.match_labels.as_ref().unwrap()["tier"],
        "big"
    );
    assert_eq!(value.load_affinity[0].storage_class, "gold-snap");
    assert_eq!(value.load_affinity[0].node_selector.match_expressions.as_ref().unwrap()[0].operator, "In");
    let gold = &value.backup_pvc["gold"];
    assert!(
        gold.read_only
            && gold.spc_no_relabeling
            && gold.storage_class == "gold-snap"
            && gold.annotations["example.org/x"] == "1"
    );
    assert!(value.restore_pvc.ignore_delay_binding);
    assert_eq!(value.pod_resources.unwrap().memory_limit, "1Gi");
    assert_eq!(value.priority_class_name, "backup-low");
    assert_eq!(value.cache_pvc.unwrap().resident_threshold_in_mb, 1024);
    assert_eq!((value.pod_annotations["a"].as_str(), value.pod_labels["c"].as_str()), ("b", "d"));
}

#[test]
fn keys_match_without_regard_to_case_but_names_given_by_people_stay() {
    let Settings { value, warnings } =
        node_agent(r#"{"LOADCONCURRENCY":{"globalconfig":3},"backupPvc":{"Gold":{"ReadOnly":true,"annotations":{"ReadOnly":"x"}}}}"#).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(value.load_concurrency.global_config, 3);
    assert!(value.backup_pvc["Gold"].read_only);
    assert_eq!(value.backup_pvc["Gold"].annotations["ReadOnly"], "x");
}

#[test]
fn unknown_keys_are_named_with_their_place() {
    let Settings { value, warnings } =
        node_agent(r#"{"loadConcurency":{},"loadConcurrency":{"perNodeConfig":[{"number":2},{"numbr":1}]},"backupPVC":{"a":{"readonlY":true,"ro":1}}}"#).unwrap();
    assert_eq!(
        warnings,
        [
            "loadConcurency is not a setting and has no effect",
            "loadConcurrency.perNodeConfig[1].numbr is not a setting and has no effect",
            "backupPVC.a.ro is not a setting and has no effect",
        ]
    );
    assert_eq!(value.load_concurrency.per_node_config[0].number, 2);
}

#[test]
fn names_of_old_documents_are_understood_and_corrected() {
    let Settings { value, warnings } =
        node_agent(r#"{"cacheVolume":{"storageClass":"s","residentThresholdMB":5}}"#).unwrap();
    assert_eq!(value.cache_pvc.unwrap(), CachePvc { storage_class: "s".into(), resident_threshold_in_mb: 5 });
    assert_eq!(
        warnings,
        [
            "cacheVolume is taken as cachePVC: write that instead",
            "cachePVC.residentThresholdMB is taken as cachePVC.residentThresholdInMB: write that instead",
        ]
    );
}

#[test]
fn null_leaves_a_setting_as_it_is() {
    let Settings { value, warnings } =
        node_agent(r#"{"loadAffinity":null,"podLabels":null,"privilegedFsBackup":null}"#).unwrap();
    assert_eq!((value, warnings), (NodeAgentConfig::default(), vec![]));
}

#[test]
fn a_value_of_the_wrong_type_is_an_error_that_names_the_setting() {
    let error =
        node_agent(r#"{"loadConcurrency":{"perNodeConfig":[{"number":"four"}]}}"#).unwrap_err().to_string();
    assert!(
        error.contains("config.json")
            && error.contains("loadConcurrency.perNodeConfig[0].number")
            && error.contains("four"),
        "{error}"
    );
    let error = node_agent("{").unwrap_err().to_string();
    assert!(error.contains("is not JSON"), "{error}");
}

#[test]
fn a_config_map_has_exactly_one_key() {
    let mut data = BTreeMap::new();
    assert!(matches!(read_single::<NodeAgentConfig>(&data), Err(ConfigError::NotOneKey { .. })));
    data.insert("any".to_owned(), "{}".to_owned());
    assert_eq!(read_single::<NodeAgentConfig>(&data).unwrap().value, NodeAgentConfig::default());
    data.insert("other".to_owned(), "{}".to_owned());
    let error = read_single::<NodeAgentConfig>(&data).unwrap_err().to_string();
    assert!(error.contains("any") && error.contains("other"), "{error}");
}

#[test]
fn repositories_and_maintenance_jobs_have_theirs() {
    let repository: Settings<RepositoryConfig> = read(
        "kopia",
        r#"{"cacheLimitMB":2000000,"fullMaintenanceInterval":"fastGC","enableCompression":true}"#,
    )
    .unwrap();
    assert_eq!(repository.value.cache_limit_mb, Some(2_000_000));
    assert_eq!(repository.value.full_maintenance_interval, Some(FullMaintenanceInterval::Fast));
    assert_eq!(repository.warnings, ["enableCompression is not a setting and has no effect"]);
    assert!(
        read::<RepositoryConfig>("kopia", r#"{"fullMaintenanceInterval":"never"}"#)
            .unwrap_err()
            .to_string()
            .contains("normalGC")
    );
    let job: Settings<MaintenanceJobConfig> =
        read("global", r#"{"keepLatestMaintenanceJobs":1,"podResources":{"cpuRequest":"100m"}}"#).unwrap();
    assert_eq!(job.value.keep_latest_maintenance_jobs, Some(1));
}
