//! Statements for uploads.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, Row, params};

use super::SqliteStore;
use super::columns::word;
use super::writer::Writing;
use crate::{Deed, NewUpload, Result, Upload, UploadedPicture, Uploads};
use tintype_domain::model::{Id, Surface};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

fn upload(row: &Row<'_>) -> rusqlite::Result<Upload> {
    Ok(Upload {
        id: row.get("id")?,
        account_id: row.get("account_id")?,
        surface: word(row, "surface")?,
        picture: UploadedPicture { name: row.get("name")?, width: row.get("width")?, height: row.get("height")? },
        removed_at: row.get("removed_at")?,
        person_id: row.get("person_id")?,
        is_mask: row.get("is_mask")?,
    })
}

#[async_trait]
impl Uploads for SqliteStore {
    async fn begin_upload(&self, new: NewUpload, most: u32) -> Result<Option<Id>> {
        let begin = move |writing: &mut Writing| {
            let now = writing.clock.now();
            let id = writing.ids.next(now);
            let NewUpload { account_id, surface, person_id, is_mask } = new;
            let sql = "INSERT INTO uploads (id, account_id, surface, updated_at, person_id, is_mask)
                SELECT ?1, id, ?3, ?4, ?6, ?7 FROM accounts WHERE id = ?2 AND disabled_at IS NULL
                AND (SELECT count(*) FROM uploads WHERE account_id = ?2 AND removed_at IS NULL) < ?5";
            let parameters = params![id, account_id, surface.as_str(), now, most, person_id, is_mask];
            let begun = writing.connection.prepare_cached(sql)?.execute(parameters)?;
            Ok((begun > 0).then_some(id))
        };
        self.write(Effect::BeginUpload, begin).await
    }

    async fn finish_upload(&self, id: Id, picture: UploadedPicture) -> Result<bool> {
        let finish = move |writing: &mut Writing| {
            let UploadedPicture { name, width, height } = &picture;
            let sql = "UPDATE uploads SET name = ?2, width = ?3, height = ?4, updated_at = ?5
                WHERE id = ?1 AND name IS NULL AND removed_at IS NULL";
            let parameters = params![id, name, width, height, writing.clock.now()];
            Ok(writing.connection.prepare_cached(sql)?.execute(parameters)? > 0)
        };
        self.write(Effect::FinishUpload, finish).await
    }

    async fn count_uploads(&self, account_id: Id) -> Result<u32> {
        let sql = "SELECT count(*) FROM uploads WHERE account_id = ?1 AND removed_at IS NULL";
        self.read(|connection| connection.prepare_cached(sql)?.query_row([account_id], |row| row.get(0)))
    }

    async fn held_upload(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>> {
        let sql = "SELECT * FROM uploads WHERE id = ?1 AND account_id = ?2 AND surface = ?3 AND name IS NOT NULL";
        self.read(|connection| {
            connection.prepare_cached(sql)?.query_row(params![id, account_id, surface.as_str()], upload).optional()
        })
    }

    async fn list_uploads(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Upload>> {
        let sql = "SELECT * FROM uploads WHERE account_id = ?1 AND surface = ?2 AND (?3 IS NULL OR id < ?3)
            AND removed_at IS NULL AND name IS NOT NULL ORDER BY id DESC LIMIT ?4";
        self.read(|connection| {
            let parameters = params![account_id, surface.as_str(), before, limit];
            connection.prepare_cached(sql)?.query_map(parameters, upload)?.collect()
        })
    }

    async fn remove_upload(&self, account_id: Id, surface: Surface, id: Id, author: Option<Id>) -> Result<bool> {
        let sql = "UPDATE uploads SET removed_at = ?4
            WHERE id = ?1 AND account_id = ?2 AND surface = ?3 AND name IS NOT NULL AND removed_at IS NULL
            AND (?5 IS NULL OR person_id = ?5) RETURNING *";
        let remove = move |writing: &mut Writing| {
            let parameters = params![id, account_id, surface.as_str(), writing.clock.now(), author];
            writing.connection.prepare_cached(sql)?.query_row(parameters, upload).optional()
        };
        let actor = self.actor.clone();
        let deed = move |removed: &Option<Upload>| Deed::of_removed_upload(removed.as_ref()?, actor.as_deref()?);
        Ok(self.write(Effect::RemoveUploads, self.recorded(remove, deed)).await?.is_some())
    }

    async fn remove_uploads(&self, finished_before: Timestamp, begun_before: Timestamp) -> Result<usize> {
        let sql = "UPDATE uploads SET removed_at = ?3
            WHERE removed_at IS NULL AND id < iif(name IS NULL OR surface = 'api', ?2, ?1)";
        let remove = move |writing: &mut Writing| {
            let parameters = params![Id::floor(finished_before), Id::floor(begun_before), writing.clock.now()];
            writing.connection.prepare_cached(sql)?.execute(parameters)
        };
        self.write(Effect::RemoveUploads, remove).await
    }

    async fn removed_uploads(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<Upload>> {
        let sql = "SELECT * FROM uploads WHERE removed_at < ?1 AND name IS NOT NULL ORDER BY removed_at LIMIT ?2";
        self.read(|connection| connection.prepare_cached(sql)?.query_map(params![cutoff, limit], upload)?.collect())
    }

    async fn forget_upload(&self, id: Id) -> Result<()> {
        let sql = "DELETE FROM uploads WHERE id = ?1 AND removed_at IS NOT NULL";
        let forget = move |writing: &mut Writing| writing.connection.prepare_cached(sql)?.execute([id]).map(drop);
        self.write(Effect::RemoveUploads, forget).await
    }
}
