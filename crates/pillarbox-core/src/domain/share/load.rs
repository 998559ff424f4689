//! How much of the whole a node wants: all are equal, until one stays saturated while others idle.
//!
//! Events without a key are spread over the partitions when their writer is busy, and events with a key lie where their
//! key is. So a node that can't keep up, because it is slower or its partitions are fuller, is helped by having fewer of
//! them. It lowers its own weight, which all nodes see, and sharing out does the rest.
//!
//! Nothing swings to and fro: a weight falls only after several looks in a row, and rises only after many; and each
//! time that its direction changes, both take twice as long as before.

/// How busy a node was between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nothing waits, and half of the workers or more have nothing to do.
    Idle,
    /// Neither.
    Busy,
    /// No worker had a pause, and more work waits, be it a single key for many slow ones.
    Saturated,
}

/// What a node tells the others about itself, beside its routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How much of the whole it wants, against the others' weights; 0 when it is about to leave.
    pub weight: u8,
    /// Whether it could do more.
    pub idle: bool,
}

impl Standing {
    /// The weight of a node that wants as much as any other.
    pub const FULL: u8 = 16;
    /// A node that is about to leave.
    pub const LEAVING: Self = Self { weight: 0, idle: false };

    /// As notes to publish with the routes. A note begins with `@`, and a route with a parenthesis.
    pub fn notes(self) -> Vec<String> {
        let weight = (self.weight != Self::FULL).then(|| format!("@weight={}", self.weight));
        let idle = self.idle.then(|| "@idle".to_owned());
        weight.into_iter().chain(idle).collect()
    }

    /// What a node has published without the notes: its routes.
    pub fn routes(published: &[String]) -> impl Iterator<Item = &String> {
        published.iter().filter(|text| !text.starts_with('@'))
    }

    /// From what a node has published. What it has not said, or in words that this version does not know, is as usual.
    pub fn read(published: &[String]) -> Self {
        let weight = published.iter().find_map(|note| note.strip_prefix("@weight=")?.parse().ok());
        Self {
            weight: weight.unwrap_or(Self::FULL).min(Self::FULL),
            idle: published.iter().any(|note| note == "@idle"),
        }
    }
}

impl Default for Standing {
    fn default() -> Self {
        Self { weight: Self::FULL, idle: false }
    }
}

/// Looks in a row before a weight falls, at first; before it rises, four times as many.
const PATIENCE: u32 = 3;
const MOST_PATIENCE: u32 = 1 << 12;
/// Looks in a row before a node calls itself idle.
const RESTED: u32 = 2;

/// Weighs a node, one look after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scales {
    weight: u8,
    /// Looks in a row that found it saturated beside an idle one.
    pressed: u32,
    /// Looks in a row that found it idle.
    rested: u32,
    patience: u32,
    last: Option<Direction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Down,
    Up,
}

impl Default for Scales {
    fn default() -> Self {
        Self { weight: Standing::FULL, pressed: 0, rested: 0, patience: PATIENCE, last: None }
    }
}

impl Scales {
    /// One look: how busy the node was since the last one, and whether another one idles.
    pub fn look(&mut self, load: Load, another_idles: bool) -> Standing {
        self.pressed = if load == Load::Saturated && another_idles { self.pressed + 1 } else { 0 };
        self.rested = if load == Load::Idle { self.rested.saturating_add(1) } else { 0 };
        let step = (self.weight / 4).max(1);
        if self.pressed >= self.patience && self.weight > 1 {
            self.moves(Direction::Down);
            self.weight -= step;
        } else if self.rested >= self.patience * 4 && self.weight < Standing::FULL {
            self.moves(Direction::Up);
            self.weight = (self.weight + step).min(Standing::FULL);
        }
        Standing { weight: self.weight, idle: self.rested >= RESTED }
    }

    fn moves(&mut self, direction: Direction) {
        if self.last.replace(direction).is_some_and(|last| last != direction) {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        self.pressed = 0;
        self.rested = RESTED * u32::from(direction == Direction::Up);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn looks(scales: &mut Scales, times: u32, load: Load, another_idles: bool) -> Vec<u8> {
        (0..times).map(|_| scales.look(load, another_idles).weight).collect()
    }

    #[test]
    fn a_weight_falls_after_three_looks_in_a_row_beside_an_idle_node() {
        let mut scales = Scales::default();
        assert_eq!(looks(&mut scales, 7, Load::Saturated, true), [16, 16, 12, 12, 12, 9, 9]);
    }

    #[test]
    fn a_weight_stays_while_nobody_idles_or_the_load_comes_and_goes() {
        let mut scales = Scales::default();
        assert!(looks(&mut scales, 100, Load::Saturated, false).iter().all(|weight| *weight == 16));
        for _ in 0..100 {
            looks(&mut scales, 2, Load::Saturated, true);
            assert_eq!(looks(&mut scales, 1, Load::Busy, true), [16]);
        }
    }

    #[test]
    fn a_weight_never_falls_to_nothing() {
        let mut scales = Scales::default();
        assert_eq!(looks(&mut scales, 1_000, Load::Saturated, true).last(), Some(&1));
    }

    #[test]
    fn a_weight_rises_again_when_the_node_has_idled_for_long() {
        let mut scales = Scales::default();
        looks(&mut scales, 3, Load::Saturated, true);
        let weights = looks(&mut scales, 1_000, Load::Idle, true);
        assert_eq!((weights[10], weights[11]), (12, 15));
        assert_eq!(weights.last(), Some(&16));
        // It has turned once, and takes twice as long to fall.
        assert_eq!(looks(&mut scales, 6, Load::Saturated, true), [16, 16, 16, 16, 16, 12]);
    }

    #[test]
    fn notes_come_back_as_they_were_and_routes_are_none() {
        for standing in [Standing::default(), Standing::LEAVING, Standing { weight: 7, idle: true }] {
            let mut published = vec!["(\"Order\", \"@idle\")".to_owned()];
            published.extend(standing.notes());
            assert_eq!(Standing::read(&published), standing);
            assert!(Standing::routes(&published).eq(&published[..1]));
        }
        assert_eq!(Standing::default().notes(), Vec::<String>::new());
        assert_eq!(Standing::read(&["@weight=many".into(), "@news".into()]), Standing::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Nodes of any speed under any load, which lies where the partitions are: shares come to rest.
        #[test]
        fn weights_come_to_rest(
            speeds in proptest::collection::vec(1.0..100.0_f64, 2..6),
            part in 0.05..1.5_f64,
            hot in proptest::option::of((0..6_usize, 0.0..0.9_f64)),
        ) {
            let total = part * speeds.iter().sum::<f64>();
            // A part of the load may stay with one node, whatever it gives away: a key that is hot.
            let (hot_at, hot) = hot.map_or((0, 0.0), |(at, part)| (at % speeds.len(), total * part));
            let mut nodes = vec![(Scales::default(), Standing::default()); speeds.len()];
            let mut moves = Vec::new();
            for look in 0..6_000_u32 {
                let weights: f64 = nodes.iter().map(|(_, standing)| f64::from(standing.weight)).sum();
                let seen: Vec<Standing> = nodes.iter().map(|(_, standing)| *standing).collect();
                for (at, (scales, standing)) in nodes.iter_mut().enumerate() {
                    let share = f64::from(standing.weight) / weights;
                    let load = (total - hot) * share + if at == hot_at { hot } else { 0.0 };
                    let load = match load / speeds[at] {
                        over if over > 1.0 => Load::Saturated,
                        under if under < 0.5 => Load::Idle,
                        _ => Load::Busy,
                    };
                    let another_idles = seen.iter().enumerate().any(|(other, seen)| other != at && seen.idle);
                    let next = scales.look(load, another_idles);
                    if next.weight != standing.weight {
                        moves.push(look);
                    }
                    *standing = next;
                }
            }
            let late = moves.iter().filter(|look| **look >= 3_000).count();
            prop_assert!(moves.len() <= 60 * speeds.len(), "{} moves", moves.len());
            prop_assert!(late <= 2 * speeds.len(), "{} late moves", late);
        }
    }
}
