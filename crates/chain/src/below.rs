//! [`Below`]: the filters below a filter, with the device under them, as one block device.

use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};

use crate::bottom::Bottom;
use crate::filter::Filter;

/// Filters over a device. For a filter it is the disk below; all filters together are the chain.
pub(crate) struct Below<'a, D> {
    pub filters: &'a mut [Box<dyn Filter>],
    pub bottom: Bottom<'a, D>,
}

/// The filter that a request reaches first, with what lies below it; or the device, if there is
/// no filter.
enum Uppermost<'a, D> {
    Filter(&'a mut dyn Filter, Below<'a, D>),
    Bottom(Bottom<'a, D>),
}

impl<D> Below<'_, D> {
    fn uppermost(&mut self) -> Uppermost<'_, D> {
        let bottom = Bottom {
            device: &mut *self.bottom.device,
            generation: self.bottom.generation,
        };
        match self.filters.split_first_mut() {
            Some((first, filters)) => Uppermost::Filter(&mut **first, Below { filters, bottom }),
            None => Uppermost::Bottom(bottom),
        }
    }
}

impl<D: BlockDevice> BlockDevice for Below<'_, D> {
    fn geometry(&self) -> DeviceGeometry {
        geometry_of(self.filters, &*self.bottom.device)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities_of(self.filters, &*self.bottom.device)
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.start(&mut below, request),
            Uppermost::Bottom(mut bottom) => bottom.start(request),
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.end_batch(&mut below),
            Uppermost::Bottom(mut bottom) => bottom.end_batch(),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.poll(&mut below, completions),
            Uppermost::Bottom(mut bottom) => bottom.poll(completions),
        }
    }

    fn stop_waiting(&mut self) {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.stop_waiting(&mut below),
            Uppermost::Bottom(mut bottom) => bottom.stop_waiting(),
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        timer_of(self.filters, &*self.bottom.device)
    }
}

pub(crate) fn geometry_of(
    filters: &[Box<dyn Filter>],
    bottom: &impl BlockDevice,
) -> DeviceGeometry {
    let filters = filters.iter().rev();
    filters.fold(bottom.geometry(), |below, one| one.geometry(below))
}

pub(crate) fn capabilities_of(
    filters: &[Box<dyn Filter>],
    bottom: &impl BlockDevice,
) -> Capabilities {
    let filters = filters.iter().rev();
    filters.fold(bottom.capabilities(), |below, one| one.capabilities(below))
}

pub(crate) fn timer_of(filters: &[Box<dyn Filter>], bottom: &impl BlockDevice) -> Option<Duration> {
    let timers = filters.iter().filter_map(|filter| filter.next_timer());
    timers.chain(bottom.next_timer()).min()
}
