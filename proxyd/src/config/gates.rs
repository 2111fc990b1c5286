//! Feature gates (C2.7): which names exist, which are locked, which matter here.

use std::collections::BTreeMap;

/// The gates that were set, and the answers of the few that matter to a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(pub(super) BTreeMap<String, bool>);

/// Maturity of a gate that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Stable,
    Locked,
}

/// Name, default and stage of the gates that matter in 1.36.
const EFFECTIVE: [(&str, bool, Stage); 9] = [
    ("AllowServiceExternalIPs", true, Stage::Stable),
    ("ComponentFlagz", true, Stage::Beta),
    ("ComponentStatusz", true, Stage::Beta),
    ("LoggingAlphaOptions", false, Stage::Alpha),
    ("LoggingBetaOptions", true, Stage::Beta),
    ("MultiCIDRServiceAllocator", true, Stage::Locked),
    ("NFTablesProxyMode", true, Stage::Locked),
    ("NativeHistograms", false, Stage::Alpha),
    ("PreferSameTrafficDistribution", true, Stage::Locked),
];

impl FeatureGates {
    /// Whether a Service's `externalIPs` are served.
    #[must_use]
    pub fn allow_service_external_ips(&self) -> bool {
        self.enabled("AllowServiceExternalIPs")
    }

    /// Whether a gate is on; gates without effect on a proxy count as off unless set.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        let (_, default, stage) = EFFECTIVE.into_iter().find(|gate| gate.0 == name).unwrap_or((
            name,
            false,
            Stage::Stable,
        ));
        let group = match stage {
            Stage::Alpha => self.0.get("AllAlpha"),
            Stage::Beta => self.0.get("AllBeta"),
            Stage::Stable | Stage::Locked => None,
        };
        self.0.get(name).or(group).copied().unwrap_or(default)
    }

    /// The gates that matter to a proxy: name, stage as kube-proxy's metrics spell it, and
    /// whether it is on.
    pub fn effective(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        EFFECTIVE.into_iter().map(|(name, _, stage)| {
            let stage = match stage {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Stable | Stage::Locked => "",
            };
            (name, stage, self.enabled(name))
        })
    }

    /// The gates that were set, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|(name, on)| (name.as_str(), *on))
    }
}

/// The value a gate is locked to.
pub(super) fn locked_to(name: &str) -> Option<bool> {
    let gate = EFFECTIVE.iter().find(|gate| gate.0 == name && gate.2 == Stage::Locked)?;
    Some(gate.1)
}

/// Whether kube-proxy knows this gate, so that it may stand in a shared configuration.
pub(super) fn is_known(name: &str) -> bool {
    EFFECTIVE.iter().any(|gate| gate.0 == name) || WITHOUT_EFFECT.contains(&name)
}

/// Gates of other components that kube-proxy accepts, plus the two that stand for groups.
const WITHOUT_EFFECT: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerTracing",
    "APIServingWithRoutine",
    "AggregatedDiscoveryRemoveBetaType",
    "AllAlpha",
    "AllBeta",
    "AllowDNSOnlyNodeCSR",
    "AllowInsecureKubeletCertificateSigningRequests",
    "AllowOverwriteTerminationGracePeriodSeconds",
    "AllowParsingUserUIDFromCertAuth",
    "AllowServiceLBStatusOnNonLB",
    "AllowUnsafeMalformedObjectDeletion",
    "AnonymousAuthConfigurableEndpoints",
    "AnyVolumeDataSource",
    "AuthorizeNodeWithSelectors",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CBORServingAndStorage",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CPUManagerPolicyOptions",
    "CRDValidationRatcheting",
    "CSIMigrationPortworx",
    "CSIVolumeHealth",
    "ClearingNominatedNodeNameAfterBinding",
    "CloudControllerManagerWebhook",
    "ClusterTrustBundle",
    "ClusterTrustBundleProjection",
    "ComponentSLIs",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCache",
    "ContainerCheckpoint",
    "ContainerStopSignals",
    "ContextualLogging",
    "CoordinatedLeaderElection",
    "CronJobsScheduledAnnotation",
    "CrossNamespaceVolumeDataSource",
    "CustomCPUCFSQuotaPeriod",
    "CustomResourceFieldSelectors",
    "DRAAdminAccess",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DRASchedulerFilterTimeout",
    "DeclarativeValidation",
    "DeclarativeValidationTakeover",
    "DeploymentReplicaSetTerminatingReplicas",
    "DetectCacheInconsistency",
    "DevicePluginCDIDevices",
    "DisableAllocatorDualWrite",
    "DisableCPUQuotaWithExclusiveCPUs",
    "DisableNodeKubeProxyVersion",
    "DynamicResourceAllocation",
    "EventedPLEG",
    "ExecProbeTimeout",
    "ExternalServiceAccountTokenSigner",
    "GitRepoVolumeDriver",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HPAConfigurableTolerance",
    "HPAScaleToZero",
    "HonorPVReclaimPolicy",
    "ImageMaximumGCAge",
    "ImageVolume",
    "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingAllocatedStatus",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InTreePluginPortworxUnregister",
    "JobBackoffLimitPerIndex",
    "JobManagedBy",
    "JobPodReplacementPolicy",
    "JobSuccessPolicy",
    "KMSv1",
    "KubeletCgroupDriverFromCRI",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletFineGrainedAuthz",
    "KubeletInUserNamespace",
    "KubeletPSI",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletSeparateDiskGC",
    "KubeletServiceAccountTokenForCredentialProviders",
    "KubeletTracing",
    "LegacySidecarContainers",
    "ListFromCacheSnapshot",
    "LoadBalancerIPMode",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LogarithmicScaleDown",
    "MatchLabelKeysInPodAffinity",
    "MatchLabelKeysInPodTopologySpread",
    "MaxUnavailableStatefulSet",
    "MemoryManager",
    "MemoryQoS",
    "MutatingAdmissionPolicy",
    "NodeInclusionPolicyInPodTopologySpread",
    "NodeLogQuery",
    "NodeSwap",
    "OpenAPIEnums",
    "OrderedNamespaceDeletion",
    "PersistentVolumeLastPhaseTransitionTime",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodDeletionCost",
    "PodDisruptionConditions",
    "PodIndexLabel",
    "PodLevelResources",
    "PodLifecycleSleepAction",
    "PodLifecycleSleepActionAllowZero",
    "PodLogsQuerySplitStreams",
    "PodObservedGenerationTracking",
    "PodReadyToStartContainersCondition",
    "PodSchedulingReadiness",
    "PodTopologyLabelsAdmission",
    "PortForwardWebsockets",
    "ProcMountType",
    "QOSReserved",
    "RecoverVolumeExpansionFailure",
    "RecursiveReadOnlyMounts",
    "ReduceDefaultCrashLoopBackOffDecay",
    "RelaxedDNSSearchValidation",
    "RelaxedEnvironmentVariableValidation",
    "RelaxedServiceNameValidation",
    "ReloadKubeletServerCertificateFile",
    "RemoteRequestHeaderUID",
    "ResilientWatchCacheInitialization",
    "ResourceHealthStatus",
    "RetryGenerateName",
    "RotateKubeletServerCertificate",
    "RuntimeClassInImageCriAPI",
    "SELinuxChangePolicy",
    "SELinuxMount",
    "SELinuxMountReadWriteOncePod",
    "SchedulerAsyncPreemption",
    "SchedulerQueueingHints",
    "SeparateCacheWatchRPC",
    "SeparateTaintEvictionController",
    "ServiceAccountNodeAudienceRestriction",
    "ServiceAccountTokenJTI",
    "ServiceAccountTokenNodeBinding",
    "ServiceAccountTokenNodeBindingValidation",
    "ServiceAccountTokenPodNodeInfo",
    "ServiceTrafficDistribution",
    "SidecarContainers",
    "SizeMemoryBackedVolumes",
    "StatefulSetAutoDeletePVC",
    "StatefulSetStartOrdinal",
    "StorageCapacityScoring",
    "StorageNamespaceIndex",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StorageVersionMigrator",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StrictCostEnforcementForVAP",
    "StrictCostEnforcementForWebhooks",
    "StrictIPCIDRValidation",
    "StructuredAuthenticationConfiguration",
    "StructuredAuthorizationConfiguration",
    "SupplementalGroupsPolicy",
    "SystemdWatchdog",
    "TopologyAwareHints",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
    "TopologyManagerPolicyOptions",
    "TranslateStreamCloseWebsocketRequests",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "UserNamespacesPodSecurityStandards",
    "UserNamespacesSupport",
    "VolumeAttributesClass",
    "VolumeCapacityPriority",
    "WatchCacheInitializationPostStartHook",
    "WatchFromStorageWithoutResourceVersion",
    "WatchList",
    "WinDSR",
    "WinOverlay",
    "WindowsCPUAndMemoryAffinity",
    "WindowsGracefulNodeShutdown",
    "WindowsHostNetwork",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(list: &[(&str, bool)]) -> FeatureGates {
        FeatureGates(list.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect())
    }

    #[test]
    fn c2_7_defaults_and_groups() {
        assert!(gates(&[]).allow_service_external_ips());
        assert!(!gates(&[("AllowServiceExternalIPs", false)]).allow_service_external_ips());
        assert!(gates(&[("AllAlpha", true)]).enabled("LoggingAlphaOptions"));
        assert!(!gates(&[("AllBeta", false)]).enabled("ComponentFlagz"));
        assert!(gates(&[("AllBeta", false), ("ComponentFlagz", true)]).enabled("ComponentFlagz"));
        assert!(gates(&[("AllAlpha", false)]).enabled("NFTablesProxyMode"));
    }

    #[test]
    fn c2_7_names() {
        assert_eq!(locked_to("NFTablesProxyMode"), Some(true));
        assert_eq!(locked_to("AllowServiceExternalIPs"), None);
        assert!(is_known("AllAlpha") && is_known("SidecarContainers"));
        assert!(!is_known("NoSuchGate"));
        assert!(WITHOUT_EFFECT.is_sorted());
    }
}
