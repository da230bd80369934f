//! Enumerations of all cases, for tests that count them.

/// All permutations of these numbers.
pub fn permutations(of: Vec<u32>) -> Vec<Vec<u32>> {
    if of.len() <= 1 {
        return vec![of];
    }
    let mut all = Vec::new();
    for at in 0..of.len() {
        let mut rest = of.clone();
        let first = rest.remove(at);
        all.extend(permutations(rest).into_iter().map(|mut rest| {
            rest.insert(0, first);
            rest
        }));
    }
    all
}
