//! Which dead events.

use clap::Args;

/// Narrows what is shown or acted upon; what is not given matches everything.
#[derive(Clone, Debug, Args)]
pub(super) struct Filter {
    /// Of this event type.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Of this aggregate type.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// Of this aggregate.
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,
    /// Of this tenant.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// With this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Inserted at this time or later, such as 2026-11-15T08:30:00Z or 2026-11-15.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Inserted before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// With this text in the last error or the payload, letter case apart.
    #[arg(long, value_name = "WORDS")]
    text: Option<String>,
}

impl Filter {
    /// What is set, under the API's names.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let fields = [
            ("type", &self.event_type),
            ("aggregate_type", &self.aggregate_type),
            ("aggregate_id", &self.aggregate_id),
            ("tenant", &self.tenant),
            ("key", &self.key),
            ("from", &self.from),
            ("until", &self.until),
            ("text", &self.text),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}
