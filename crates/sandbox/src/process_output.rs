//! [`OutputReader`]: reads the standard error of a filter's process. Lines of JSON are events of
//! the filter; other lines are logged.
//!
//! The process is not trusted: this side, and not the process, says to which filter, volume and
//! tenant an event belongs.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use chain::filters::{Event, EventKind};
use chain::{Attribution, EventSink};
use world::Clock;

/// The maximal length of a line, in bytes. The rest of a longer one is the next line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A reader of the standard error of one process.
pub(crate) struct OutputReader {
    pub attribution: Arc<Attribution>,
    pub name: Arc<str>,
    pub events: Arc<dyn EventSink>,
    pub clock: Arc<dyn Clock>,
}

impl OutputReader {
    /// Reads until the process ends, in a thread of its own.
    pub fn start(self, stderr: impl Read + Send + 'static) -> std::io::Result<()> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread lives as long as the process, which is too long for a pool"
        )]
        std::thread::Builder::new()
            .name("filter-events".to_owned())
            .spawn(move || self.read(stderr))?;
        Ok(())
    }

    fn read(&self, stderr: impl Read) {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut stderr)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
            {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            match serde_json::from_slice(&line) {
                Ok(fields) => self.report(EventKind::Forwarded(fields)),
                Err(_) => {
                    let text = String::from_utf8_lossy(line.trim_ascii_end());
                    tracing::info!(
                        name = %self.name,
                        tenant = self.attribution.tenant,
                        %text,
                        "filter process printed line"
                    );
                }
            }
        }
    }

    fn report(&self, kind: EventKind) {
        self.events.report(vec![Event {
            time: self.clock.wall(),
            attribution: Arc::clone(&self.attribution),
            filter: Arc::clone(&self.name),
            partition: None,
            kind,
            rule: None,
        }]);
    }
}
