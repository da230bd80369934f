//! Reed-Solomon over the rows of a segment: k slots of data, m of parity, any k
//! of which give the others.
//!
//! ```text
//!  parity j of a row = Σ  2^(j·i) · slot i     over those i that are in its mask
//! ```
//!
//! The factors are those of RAID-Z (1, 2ⁱ, 4ⁱ): every square submatrix is
//! invertible for all allowed `k` and `m`, which a test checks. They make the
//! parity of a row a polynomial, computed by shifts and exclusive or alone.
//!
//! Slots of one row may be reclaimed one after another, and its parities may be
//! made of different slots for a while. So a slot is recovered as an unknown of the
//! linear equations that the available parities are.
//!
//! Pure: no I/O, no units; contents and tags are both bytes.

use catalog::Erasure;

use super::field::{add_product, inverse, multiply, power, shift, shift_and_add};

/// One bit for each of a row's k data slots.
pub type Mask = u16;

/// The mask of all of a row's data slots.
pub fn whole(erasure: Erasure) -> Mask {
    Mask::MAX >> (Mask::BITS - u32::from(erasure.data()))
}

fn factor(parity: usize, slot: usize) -> u8 {
    power(2, (parity * slot) as u32)
}

/// Computes parity number `parity` of a row into `into`; `row` has its data slots in
/// order, `None` for those that the parity is not made of.
pub fn encode<'a>(
    parity: usize,
    row: impl DoubleEndedIterator<Item = Option<&'a [u8]>>,
    into: &mut [u8],
) {
    into.fill(0);
    for slot in row.rev() {
        match slot {
            Some(slot) => shift_and_add(into, parity as u32, slot),
            None => shift(into, parity as u32),
        }
    }
}

/// How a slot is recovered from others: a sum of products.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Data slots of the row, by number, and their factors.
    pub data: Vec<(usize, u8)>,
    /// Parities, by number, and their factors.
    pub parities: Vec<(usize, u8)>,
}

/// How data slot `wanted` of a row is recovered from the data slots in `there` and
/// from these parities: number, and mask of the slots that it is made of. `None` if
/// they do not determine it. Earlier parities are preferred.
pub fn recipe(wanted: usize, there: Mask, parities: &[(usize, Mask)]) -> Option<Recipe> {
    let unknown = parities
        .iter()
        .fold(1 << wanted, |all, (_, mask)| all | mask)
        & !there;
    let unknowns: Vec<usize> = (0..Mask::BITS as usize)
        .filter(|slot| unknown >> slot & 1 == 1)
        .collect();
    let solution = solve(equations(&unknowns, parities), &unknowns, wanted)?;
    let mut of_data = [0u8; Mask::BITS as usize];
    let mut of_parities = Vec::new();
    for ((parity, mask), times) in parities.iter().zip(solution.sum) {
        if times == 0 {
            continue;
        }
        of_parities.push((*parity, times));
        let known = mask & there;
        for (slot, of_slot) in of_data.iter_mut().enumerate() {
            if known >> slot & 1 == 1 {
                *of_slot ^= multiply(times, factor(*parity, slot));
            }
        }
    }
    let data = of_data.into_iter().enumerate();
    Some(Recipe {
        data: data.filter(|(_, times)| *times != 0).collect(),
        parities: of_parities,
    })
}

/// A linear equation of unknown slots: Σ factor · unknown = Σ times · parity.
#[derive(Clone)]
struct Equation {
    /// The factors of the unknown slots.
    factors: Vec<u8>,
    /// How many times it sums each parity.
    sum: Vec<u8>,
}

/// One equation for each parity.
fn equations(unknowns: &[usize], parities: &[(usize, Mask)]) -> Vec<Equation> {
    let mut equations = Vec::new();
    for (at, (parity, mask)) in parities.iter().enumerate() {
        let of = |slot: &usize| match mask >> slot & 1 {
            1 => factor(*parity, *slot),
            _ => 0,
        };
        let mut sum = vec![0; parities.len()];
        sum[at] = 1;
        equations.push(Equation {
            factors: unknowns.iter().map(of).collect(),
            sum,
        });
    }
    equations
}

/// Solves for slot `wanted` by Gauss-Jordan elimination: the equation in which it is the
/// only unknown, with factor 1; `None` if the equations do not determine it.
fn solve(mut equations: Vec<Equation>, unknowns: &[usize], wanted: usize) -> Option<Equation> {
    let mut solved = 0;
    let mut solution = None;
    for (column, slot) in unknowns.iter().enumerate() {
        let Some(pivot) = (solved..equations.len()).find(|at| equations[*at].factors[column] != 0)
        else {
            continue;
        };
        equations.swap(solved, pivot);
        let scale = inverse(equations[solved].factors[column]);
        let pivot = &mut equations[solved];
        for element in pivot.factors.iter_mut().chain(&mut pivot.sum) {
            *element = multiply(*element, scale);
        }
        let pivot = equations[solved].clone();
        for (at, equation) in equations.iter_mut().enumerate() {
            let times = equation.factors[column];
            if at != solved && times != 0 {
                add_product(&mut equation.factors, times, &pivot.factors);
                add_product(&mut equation.sum, times, &pivot.sum);
            }
        }
        if *slot == wanted {
            solution = Some(solved);
        }
        solved += 1;
    }
    let solution = equations.swap_remove(solution?);
    let nonzero = solution.factors.iter().filter(|factor| **factor != 0);
    (nonzero.count() == 1).then_some(solution)
}

/// Adds one summand of a recipe.
pub fn add(into: &mut [u8], times: u8, from: &[u8]) {
    add_product(into, times, from);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 48;

    fn all() -> impl Iterator<Item = Erasure> {
        (2..=Erasure::DATA_MAX).flat_map(|data| {
            (1..=Erasure::PARITY_MAX)
                .map(move |parity| Erasure::new(data, parity).expect("allowed"))
        })
    }

    fn row(erasure: Erasure, seed: u8) -> Vec<Vec<u8>> {
        let byte = |slot: u8, at: usize| {
            let mixed = (at as u32 + 1).wrapping_mul(0x9e37_79b1)
                ^ u32::from(slot).wrapping_mul(0x85eb_ca6b);
            (mixed >> 13) as u8 ^ seed
        };
        let slots = 0..erasure.data();
        slots
            .map(|slot| (0..BYTES).map(|at| byte(slot, at)).collect())
            .collect()
    }

    fn parity_of(parity: usize, row: &[Vec<u8>], mask: Mask) -> Vec<u8> {
        let mut made = vec![0xee; BYTES];
        let slots = row.iter().enumerate();
        let slots = slots.map(|(slot, bytes)| (mask >> slot & 1 == 1).then_some(&bytes[..]));
        encode(parity, slots, &mut made);
        made
    }

    fn apply(recipe: &Recipe, row: &[Vec<u8>], parities: &[(usize, Mask)]) -> Vec<u8> {
        let mut out = vec![0; BYTES];
        for (slot, times) in &recipe.data {
            add(&mut out, *times, &row[*slot]);
        }
        for (parity, times) in &recipe.parities {
            let (_, mask) = parities.iter().find(|(at, _)| at == parity).expect("given");
            add(&mut out, *times, &parity_of(*parity, row, *mask));
        }
        out
    }

    /// All sets of k fragments: a mask of data slots, and parity numbers.
    fn survivors(erasure: Erasure) -> impl Iterator<Item = (Mask, Vec<usize>)> {
        let (data, parity) = (u32::from(erasure.data()), u32::from(erasure.parity()));
        (0u32..1 << (data + parity))
            .filter(move |set| set.count_ones() == data)
            .map(move |set| {
                let there = (set & ((1 << data) - 1)) as Mask;
                let parities =
                    (0..parity as usize).filter(|at| set >> (data as usize + at) & 1 == 1);
                (there, parities.collect())
            })
    }

    #[test]
    fn any_k_fragments_of_a_row_recover_all_its_slots() {
        for erasure in all() {
            let row = row(erasure, 3);
            for (there, parities) in survivors(erasure) {
                let parities: Vec<_> = parities
                    .into_iter()
                    .map(|at| (at, whole(erasure)))
                    .collect();
                for wanted in (0..row.len()).filter(|slot| there >> slot & 1 == 0) {
                    let recipe = recipe(wanted, there, &parities);
                    let recipe = recipe.unwrap_or_else(|| panic!("{erasure} {there:b} {wanted}"));
                    assert_eq!(apply(&recipe, &row, &parities), row[wanted]);
                }
            }
        }
    }

    #[test]
    fn excluded_slots_are_not_needed() {
        for erasure in [(2, 1), (4, 2)].map(|(k, m)| Erasure::new(k, m).expect("allowed")) {
            let row = row(erasure, 9);
            for mask in 1..=whole(erasure) {
                for (there, parities) in survivors(erasure) {
                    // A reclaimed slot exists nowhere.
                    let there = there & mask;
                    let parities: Vec<_> = parities.into_iter().map(|at| (at, mask)).collect();
                    let lost = (0..row.len()).filter(|slot| mask >> slot & !there >> slot & 1 == 1);
                    for wanted in lost {
                        let recipe = recipe(wanted, there, &parities).expect("enough");
                        assert!(recipe.data.iter().all(|(slot, _)| there >> slot & 1 == 1));
                        assert_eq!(apply(&recipe, &row, &parities), row[wanted]);
                    }
                }
            }
        }
    }

    /// As during a reclaim: one parity is made without the dead slots, the other still
    /// with them.
    #[test]
    fn parities_of_different_slots_recover_slots_together() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let row = row(erasure, 5);
        let parities = [(0, 0b1110), (1, 0b1111)];
        for wanted in 0..4 {
            let there = 0b1111 & !(1 << wanted);
            let recipe = recipe(wanted, there, &parities).expect("one is lost");
            assert_eq!(apply(&recipe, &row, &parities), row[wanted]);
        }
        // The first slot is reclaimed and the second lost: two parities are enough.
        let recipe = recipe(1, 0b1100, &parities).expect("enough");
        assert_eq!(apply(&recipe, &row, &parities), row[1]);
    }

    #[test]
    fn an_undetermined_slot_is_not_recovered() {
        assert_eq!(recipe(0, 0b10, &[]), None, "no parity");
        assert_eq!(recipe(0, 0b10, &[(0, 0b10)]), None, "of another slot");
        assert_eq!(recipe(0, 0b00, &[(0, 0b11)]), None, "two unknown");
        let two = recipe(0, 0b1100, &[(0, 0b1111)]);
        assert_eq!(two, None, "two unknown, and one equation");
    }
}
