//! Connects to a task's port for control.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the keepalives that detect a vanished host.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to a task's port, or explains in words why that failed.
pub(super) async fn dial(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .tcp_nodelay(true);
    match endpoint.connect().await {
        Ok(channel) => Ok(channel),
        Err(error) => Err(crate::endpoint::explain(address, error).await),
    }
}
