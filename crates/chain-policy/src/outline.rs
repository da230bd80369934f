//! [`Outline`]: which filters a policy has and where they run, for who shows them. It is read in
//! the time that its text takes: patterns are not compiled, nor is anything checked.

use serde::Deserialize;

use crate::OnFailure;

/// A filter, from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Where it runs: `inline`, `process`, `program` or `machine`.
    pub runs: String,
    /// Which program or machine.
    pub at: Option<String>,
    /// What the disk does without it; none, if it runs inline.
    pub on_failure: Option<OnFailure>,
}

#[derive(Deserialize)]
struct Written {
    #[serde(rename = "filter", default)]
    filters: Vec<WrittenFilter>,
}

#[derive(Deserialize)]
struct WrittenFilter {
    kind: String,
    name: Option<String>,
    runs: Option<String>,
    on_failure: Option<OnFailure>,
    program: Option<toml::Value>,
    at: Option<toml::Value>,
}

/// The filters of a policy that was accepted, the uppermost first; none, if it is no policy.
#[must_use]
pub fn outline(text: &str) -> Vec<Outline> {
    let written = toml::from_str::<Written>(text);
    let filters = written.map_or_else(|_| Vec::new(), |written| written.filters);
    filters.into_iter().map(outline_of).collect()
}

fn outline_of(one: WrittenFilter) -> Outline {
    let at = match one.kind.as_str() {
        "program" => one.program,
        "machine" => one.at,
        _ => None,
    };
    let runs = match one.kind.as_str() {
        elsewhere @ ("program" | "machine") => elsewhere.to_owned(),
        _ => one.runs.unwrap_or_else(|| "inline".to_owned()),
    };
    let on_failure = (runs != "inline").then(|| one.on_failure.unwrap_or_default());
    Outline {
        name: one.name.unwrap_or_else(|| one.kind.clone()),
        kind: one.kind,
        runs,
        at: at.and_then(|at| at.as_str().map(str::to_owned)),
        on_failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn an_outline_says_of_each_filter_where_it_runs() {
        let key = "0".repeat(64);
        let text = format!(
            "volume = 'v'\n\
             [[filter]]\nkind = 'monitor'\n\
             [[filter]]\nkind = 'encrypt'\nname = 'e'\nkey = 'k'\nruns = 'process'\n\
             [[filter]]\nkind = 'program'\nname = 'p'\nprogram = 'scan'\non_failure = 'bypass'\n\
             [[filter]]\nkind = 'machine'\nname = 'm'\nat = '10.0.0.7:10810'\nkey = 'sha256:{key}'\n"
        );
        let read = Policy::parse(&text).expect("a policy");
        let outlines = outline(&text);
        let spelt: Vec<_> = outlines
            .iter()
            .map(|one| {
                (
                    &*one.name,
                    &*one.kind,
                    &*one.runs,
                    one.at.as_deref(),
                    one.on_failure,
                )
            })
            .collect();
        let closed = Some(OnFailure::FailClosed);
        assert_eq!(
            spelt,
            [
                ("monitor", "monitor", "inline", None, None),
                ("e", "encrypt", "process", None, closed),
                (
                    "p",
                    "program",
                    "program",
                    Some("scan"),
                    Some(OnFailure::Bypass)
                ),
                ("m", "machine", "machine", Some("10.0.0.7:10810"), closed),
            ]
        );
        for (one, outline) in read.filters.iter().zip(&outlines) {
            assert_eq!(
                (&*one.name, one.kind.as_str()),
                (&*outline.name, &*outline.kind)
            );
            let hop = one.hop.as_ref().map(|hop| hop.on_failure);
            assert_eq!(hop, outline.on_failure);
        }
        assert_eq!(outline("nonsense"), []);
    }
}
