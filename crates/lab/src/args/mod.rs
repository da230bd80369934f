//! Arguments of the laboratory's commands: `scree cost`, `scree privacy` and `scree cache`.

mod cache;
mod cost;
mod privacy;

pub use cache::{CacheCommand, SimulateArguments};
pub use cost::{
    CalibrateArguments, CostCommand, DrawArguments, Figure, PlaceArguments, PredictArguments,
    ValidateArguments, WorkloadArguments,
};
pub use privacy::{
    CaseArguments, DESTAGE_WIDTH, FileDistribution, FilesArguments, Mark, ModelCommand,
    PrivacyPlanArguments, PrivacySimulateArguments, SCATTER_WIDTH, Width,
};

fn size(text: &str) -> Result<u64, String> {
    base::size::parse(text)
}
