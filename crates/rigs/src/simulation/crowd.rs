//! Who submits when, and the dice of a run.

use super::Plan;

/// Shares of the accounts and of the tasks of each class. The giants submit in bursts.
const CLASSES: [(&str, f64, f64); 4] =
    [("quiet", 0.90, 0.10), ("steady", 0.09, 0.30), ("busy", 0.009, 0.35), ("giant", 0.001, 0.25)];

/// The accounts, by class.
#[derive(Debug)]
pub(super) struct Crowd {
    /// For each class: its name, its first account, the one after its last, arrivals per second, tasks per arrival.
    classes: Vec<(&'static str, usize, usize, f64, u64)>,
}

impl Crowd {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut first = 0;
        let classes = CLASSES.map(|(name, accounts, tasks)| {
            let at_once = match name {
                "giant" => plan.burst,
                "busy" => 4,
                _ => 1,
            };
            let many = ((plan.accounts as f64 * accounts).round() as usize).max(1);
            let class = (name, first, first + many, plan.rate * tasks / at_once as f64, at_once);
            first += many;
            class
        });
        Self { classes: classes.to_vec() }
    }

    pub(super) fn accounts(&self) -> usize {
        self.classes.last().map_or(0, |class| class.2)
    }

    /// The names of the classes, with their numbers of accounts.
    pub(super) fn classes(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.classes.iter().map(|(name, first, end, ..)| (*name, end - first))
    }

    pub(super) fn class(&self, account: usize) -> usize {
        self.classes.iter().position(|class| account < class.2).expect("an account of the crowd")
    }

    /// The accounts that submit in this second, once for each task.
    pub(super) fn arrivals(&self, rush: bool, dice: &mut Dice) -> Vec<usize> {
        let mut found = Vec::new();
        for (_, first, end, rate, at_once) in &self.classes {
            for _ in 0..dice.poisson(if rush { rate * 2.0 } else { *rate }) {
                let account = first + dice.below((end - first) as u64) as usize;
                found.extend((0..*at_once).map(|_| account));
            }
        }
        found
    }
}

/// SplitMix64, so that a seed means the same with every release of every library.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1, without 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, chance: f64) -> bool {
        self.part() < chance
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.part() * end as f64) as u64
    }

    /// Seconds of a render: half of the mean, and a rest that is distributed exponentially, at most four minutes.
    pub(super) fn render(&mut self, mean: f64) -> u64 {
        let rest = -(1.0 - self.part()).ln() * mean / 2.0;
        (mean / 2.0 + rest).min(240.0) as u64
    }

    /// By Knuth's method, which suits small means.
    fn poisson(&mut self, mean: f64) -> u32 {
        let (limit, mut product, mut many) = ((-mean).exp(), self.part(), 0);
        while product > limit {
            product *= self.part();
            many += 1;
        }
        many
    }
}
