//! What somebody may have meant.

/// The name that is nearest to what was written, if one is near at all.
pub(crate) fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    let scored = names.into_iter().map(|name| (nearness(&written, &name.to_lowercase()), name));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (best.0 >= 0.8).then_some(best.1)
}

/// 1 is the same. In a short name, two letters that have changed places are most of it to Jaro and Winkler.
fn nearness(written: &str, name: &str) -> f64 {
    let is_one_slip = written.len() > 2 && strsim::osa_distance(written, name) == 1;
    strsim::jaro_winkler(written, name).max(if is_one_slip { 0.9 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_seen_through_and_nonsense_is_not() {
        assert_eq!(nearest("worker", ["workers", "topic"]), Some("workers"));
        assert_eq!(nearest("evnt_type", ["event_type", "tenant"]), Some("event_type"));
        assert_eq!(nearest("ulr", ["replicas", "url", "largest"]), Some("url"));
        assert_eq!(nearest("quux", ["workers", "topic"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
