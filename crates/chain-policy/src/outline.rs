//! [`Outline`]: which filters a policy has and where they run, for lists that are shown to users.
//! Reading it takes time linear in the text: no pattern is compiled, and nothing is checked.

use serde::Deserialize;

use crate::OnFailure;

/// What a list shows of one filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The filter's name.
    pub name: String,
    /// The filter's kind, as the policy spells it.
    pub kind: String,
    /// Where the filter runs: `inline`, `process`, `external` or `remote`.
    pub runs: String,
    /// The program of an external filter, or the address of a remote one.
    pub at: Option<String>,
    /// What the disk does while the filter does not work; `None` if it runs inline.
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
    address: Option<toml::Value>,
}

/// The filters of a policy that was accepted earlier, in the order of a write. The list is empty
/// if the text is not a policy.
#[must_use]
pub fn outline(text: &str) -> Vec<Outline> {
    let written = toml::from_str::<Written>(text);
    let filters = written.map_or_else(|_| Vec::new(), |written| written.filters);
    filters.into_iter().map(outline_of).collect()
}

fn outline_of(one: WrittenFilter) -> Outline {
    let at = match one.kind.as_str() {
        "external" => one.program,
        "remote" => one.address,
        _ => None,
    };
    let runs = match one.kind.as_str() {
        kind @ ("external" | "remote") => kind.to_owned(),
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
             [[filter]]\nkind = 'external'\nname = 'p'\nprogram = 'scan'\non_failure = 'bypass'\n\
             [[filter]]\nkind = 'remote'\nname = 'm'\naddress = '10.0.0.7:10810'\nkey = 'sha256:{key}'\n"
        );
        let read = Policy::parse(&text).expect("a policy");
        let outlines = outline(&text);
        let spelled: Vec<_> = outlines
            .iter()
            .map(|outline| {
                (
                    &*outline.name,
                    &*outline.kind,
                    &*outline.runs,
                    outline.at.as_deref(),
                    outline.on_failure,
                )
            })
            .collect();
        let closed = Some(OnFailure::FailClosed);
        assert_eq!(
            spelled,
            [
                ("monitor", "monitor", "inline", None, None),
                ("e", "encrypt", "process", None, closed),
                (
                    "p",
                    "external",
                    "external",
                    Some("scan"),
                    Some(OnFailure::Bypass)
                ),
                ("m", "remote", "remote", Some("10.0.0.7:10810"), closed),
            ]
        );
        for (one, outline) in read.filters.iter().zip(&outlines) {
            assert_eq!(
                (&*one.name, one.kind.as_str()),
                (&*outline.name, &*outline.kind)
            );
            let settings = one.out_of_process.as_ref();
            let on_failure = settings.map(|settings| settings.on_failure);
            assert_eq!(on_failure, outline.on_failure);
        }
        assert_eq!(outline("no TOML"), []);
    }
}
