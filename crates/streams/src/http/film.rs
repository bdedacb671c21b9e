//! MP4 files as HLS: playlists and segments that are made when they are asked for.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::media::{FileKey, Library, Media};
use crate::mp4::fragment::Segments;
use crate::mp4::pace::Pace;
use crate::mp4::{Index, NoIndex};

/// Bytes of memory for what is known of files, and most files.
const MEMORY: usize = 128 << 20;
const FILES: usize = 64;

/// A file, cut.
pub(super) struct Film {
    pub segments: Segments,
    pub pace: Pace,
    weight: usize,
}

/// What is asked for of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Playlist,
    Init,
    Segment(usize),
}

/// The file that a path means, and what of it: `film.mp4.m3u8`, `film.mp4.hls/init.mp4` and
/// `film.mp4.hls/7.m4s`.
pub(super) fn meant(path: &Path) -> Option<(PathBuf, Piece)> {
    let name = path.to_str()?;
    if let Some(film) = name.strip_suffix(".m3u8") {
        let endings = [".mp4", ".m4v", ".m4a", ".mov"];
        let sound = endings.iter().any(|ending| film.to_ascii_lowercase().ends_with(ending));
        return sound.then(|| (film.into(), Piece::Playlist));
    }
    let (film, piece) = name.rsplit_once('/')?;
    let film = film.strip_suffix(".hls")?;
    let piece = match piece.strip_suffix(".m4s") {
        Some(number) => Piece::Segment(number.parse().ok()?),
        None if piece == "init.mp4" => Piece::Init,
        None => return None,
    };
    Some((film.into(), piece))
}

/// A film, or why there is none.
type Cut = Result<Arc<Film>, NoIndex>;

/// An open file of the library that can be cut.
pub(super) struct CutFile {
    pub file: File,
    pub key: FileKey,
    pub film: Arc<Film>,
}

/// Films that were asked for lately, the last one last.
#[derive(Default)]
pub(super) struct Films {
    known: Mutex<Vec<(FileKey, Cut)>>,
}

impl Films {
    /// Opens a file of the library and cuts it. Reads the index, so that it may take its time.
    ///
    /// # Errors
    /// If there is no such file; and why it can't be cut.
    pub fn film(
        &self,
        library: &Library,
        path: &Path,
    ) -> std::io::Result<Result<CutFile, NoIndex>> {
        let file = library.file(path)?;
        let key = Media::key_of(&file)?;
        let cut = self.cut(&file, key);
        Ok(cut.map(|film| CutFile { file, key, film }))
    }

    fn cut(&self, file: &File, key: FileKey) -> Cut {
        {
            let mut known = self.known.lock();
            if let Some(at) = known.iter().position(|known| known.0 == key) {
                let found = known.remove(at);
                known.push(found.clone());
                return found.1;
            }
        }
        let film = cut(file, key).map(Arc::new);
        let mut known = self.known.lock();
        known.push((key, film.clone()));
        let weigh = |known: &(FileKey, Cut)| known.1.as_ref().map_or(0, |film| film.weight);
        while known.len() > FILES
            || known.len() > 1 && known.iter().map(weigh).sum::<usize>() > MEMORY
        {
            drop(known.remove(0));
        }
        film
    }
}

fn cut(file: &File, key: FileKey) -> Result<Film, NoIndex> {
    let index = Index::read(file, key.size())?;
    let (pace, weight) = (Pace::of(&index)?, index.weight());
    let segments = Segments::cut(index)?;
    // Of each sample there is a description beside the tables.
    let weight = 2 * weight + segments.weight();
    Ok(Film { segments, pace, weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_when_they_mean_a_piece_of_a_film_then_which() {
        let of = |path: &str| {
            meant(Path::new(path)).map(|(film, piece)| (film.to_str().unwrap().to_owned(), piece))
        };
        assert_eq!(of("a/b.mp4.m3u8"), Some(("a/b.mp4".into(), Piece::Playlist)));
        assert_eq!(of("a/b.mp4.hls/12.m4s"), Some(("a/b.mp4".into(), Piece::Segment(12))));
        assert_eq!(of("b.mp4.hls/init.mp4"), Some(("b.mp4".into(), Piece::Init)));
        for none in ["list.m3u8", "b.mp4.hls/x.m4s", "b.mp4.hls/-1.m4s", "b.mp4", "x/1.m4s"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
