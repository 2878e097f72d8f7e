//! KEDA's `externalscaler.proto`: its messages, by their field numbers, and its methods.

/// The service's name in paths.
pub const SERVICE: &str = "externalscaler.ExternalScaler";

/// The path of a method.
#[must_use]
pub fn path(method: &str) -> String {
    format!("/{SERVICE}/{method}")
}

/// Which ScaledObject asks, with the metadata of its trigger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScaledObjectRef {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The trigger's metadata.
    #[prost(map = "string, string", tag = "3")]
    pub scaler_metadata: std::collections::HashMap<String, String>,
}

/// Whether the pool is to have any worker.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct IsActiveResponse {
    /// At least one.
    #[prost(bool, tag = "1")]
    pub result: bool,
}

/// What the HPA is to follow.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricSpecResponse {
    /// The metrics.
    #[prost(message, repeated, tag = "1")]
    pub metric_specs: Vec<MetricSpec>,
}

/// One metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricSpec {
    /// Its name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// Value for each worker; older KEDA reads this one.
    #[prost(int64, tag = "2")]
    pub target_size: i64,
    /// The same.
    #[prost(double, tag = "3")]
    pub target_size_float: f64,
}

/// Asks for a metric's value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsRequest {
    /// Who asks.
    #[prost(message, optional, tag = "1")]
    pub scaled_object_ref: Option<ScaledObjectRef>,
    /// The metric, as [`MetricSpec`] names it.
    #[prost(string, tag = "2")]
    pub metric_name: String,
}

/// The values of metrics.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsResponse {
    /// One for the metric that was asked for.
    #[prost(message, repeated, tag = "1")]
    pub metric_values: Vec<MetricValue>,
}

/// The value of a metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricValue {
    /// The metric.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// Its value; older KEDA reads this one, and newer where the other is 0.
    #[prost(int64, tag = "2")]
    pub metric_value: i64,
    /// The same.
    #[prost(double, tag = "3")]
    pub metric_value_float: f64,
}
