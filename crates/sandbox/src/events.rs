//! What a process says on its standard error: events of its filter, a line of JSON each, and
//! else what people read.
//!
//! A process is not trusted: whose events they are, and which filter's, this side says.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use chain::filters::{Event, What};
use chain::{Attribution, EventSink};
use world::Clock;

/// A longer line is cut, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Where the lines of one process go.
pub(crate) struct Listener {
    pub whose: Arc<Attribution>,
    pub name: Arc<str>,
    pub events: Arc<dyn EventSink>,
    pub clock: Arc<dyn Clock>,
}

impl Listener {
    /// Hears one process out, in a thread of its own.
    pub fn listen(self, said: impl Read + Send + 'static) -> std::io::Result<()> {
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the process, and waits for it"
        )]
        std::thread::Builder::new()
            .name("filter-events".to_owned())
            .spawn(move || self.hear(said))?;
        Ok(())
    }

    fn hear(&self, said: impl Read) {
        let mut said = BufReader::new(said);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut said)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
            {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            match serde_json::from_slice(&line) {
                Ok(fields) => self.tell(What::Told(fields)),
                Err(_) => {
                    let text = String::from_utf8_lossy(line.trim_ascii_end());
                    tracing::info!(name = %self.name, tenant = self.whose.tenant, %text, "a filter says");
                }
            }
        }
    }

    fn tell(&self, what: What) {
        self.events.tell(vec![Event {
            time: self.clock.wall(),
            whose: Arc::clone(&self.whose),
            monitor: Arc::clone(&self.name),
            partition: None,
            what,
            rule: None,
        }]);
    }
}
