use std::sync::Arc;
use std::time::Duration;
pub struct TrackedUnit(pub Arc<dyn unit::Unit>);
impl TrackedUnit {
    pub fn may_read(&self, _: Duration) -> bool {
        true
    }
    pub fn may_write(&self, _: Duration) -> bool {
        true
    }
}
impl std::ops::Deref for TrackedUnit {
    type Target = dyn unit::Unit;
    fn deref(&self) -> &(dyn unit::Unit + 'static) {
        &*self.0
    }
}
