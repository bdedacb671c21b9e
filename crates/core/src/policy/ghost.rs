//! Between the access that finds a ghost and the arrival of its object.

const LENGTH: usize = 16;

/// The last few objects that were found among the ghosts and have not come in yet. A driver that
/// decides against one leaves it here until newer ones push it out.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Recalled {
    objects: [Option<u64>; LENGTH],
    next: usize,
}

impl Recalled {
    pub fn push(&mut self, object: u64) {
        self.objects[self.next] = Some(object);
        self.next = (self.next + 1) % LENGTH;
    }

    pub fn contains(&self, object: u64) -> bool {
        self.objects.contains(&Some(object))
    }

    /// Takes the object off; whether it was there.
    pub fn take(&mut self, object: u64) -> bool {
        let mut found = false;
        for recalled in &mut self.objects {
            if *recalled == Some(object) {
                *recalled = None;
                found = true;
            }
        }
        found
    }
}
