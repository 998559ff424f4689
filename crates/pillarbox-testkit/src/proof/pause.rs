//! When nodes stood still, and what can have come of it.

use super::Line;

/// A node stood still. What is not known yet is at the end of all time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause<'a> {
    node: &'a str,
    began: u128,
    ended: u128,
    /// When the first renewal that was asked for afterwards was there: the lease has all of its time again.
    over: u128,
    /// When the lease was lost in between, for the last time.
    lapsed: Option<u128>,
}

impl<'a> Pause<'a> {
    /// All pauses; the lines are in order.
    pub(super) fn all(lines: &'a [Line]) -> Vec<Self> {
        let paused = lines.iter().enumerate().filter(|(_, line)| line.what == "paused");
        paused.map(|(place, line)| Self::read(line, &lines[place..])).collect()
    }

    fn read(paused: &'a Line, lines: &[Line]) -> Self {
        let of_node =
            |what: &'static str| lines.iter().filter(move |line| line.what == what && line.node == paused.node);
        let ended = of_node("resumed").next().map_or(u128::MAX, |line| line.at);
        let asked = |line: &&Line| u128::try_from(line.order).is_ok_and(|begun| begun >= ended);
        let over = of_node("renewed").find(asked).map_or(u128::MAX, |line| line.at);
        let lapsed = of_node("lapsed").map(|line| line.at).rfind(|at| *at <= over);
        Self { node: &paused.node, began: paused.at, ended, over, lapsed }
    }

    /// Whether it can be why a success is delivered again by `again`. The partition was taken for it at `took`.
    pub(super) fn repeats(&self, first: &Line, took: u128, again: &Line) -> bool {
        let meant = self.node == first.node && self.began <= again.at;
        meant
            && match self.lapsed {
                // All that was taken under the lost lease may be done again, and nothing that was taken later.
                Some(lapsed) => took <= lapsed,
                // The lease outlived it: it only made the node late.
                None => first.at <= self.over,
            }
    }

    /// Whether the node stood still, or had just gone on, when another began beside what it had begun.
    pub(super) fn excuses(&self, begun: &Line, other: &Line, slack: u128) -> bool {
        let during = self.node == begun.node && self.ended >= begun.at;
        during && self.began <= other.at + slack && other.at <= self.ended.saturating_add(slack)
    }
}
