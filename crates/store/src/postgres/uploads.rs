//! Statements for uploads.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{number, word};
use super::connection::{Parameter, Transaction};
use crate::{Deed, NewUpload, Result, Upload, UploadedPicture, Uploads};
use tintype_domain::model::{Id, Surface};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Begins the upload $1 of the account $2, which has fewer than $5 uploads. The lock makes concurrent uploads of the
/// account wait for each other.
const BEGIN: &str = "
    WITH account AS MATERIALIZED (
        SELECT id FROM accounts WHERE id = $2 AND disabled_at IS NULL FOR NO KEY UPDATE
    )
    INSERT INTO uploads (id, account_id, surface, updated_at, person_id, is_mask)
    SELECT $1, id, $3, $4, $6, $7 FROM account
    WHERE (SELECT count(*) FROM uploads WHERE account_id = $2 AND removed_at IS NULL) < $5 RETURNING id";

/// The columns of an [`Upload`].
const COLUMNS: &str = "id, account_id, surface, name, width, height, removed_at, person_id, is_mask";

fn upload(row: &Row) -> Result<Upload> {
    Ok(Upload {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        surface: word(row, "surface")?,
        picture: UploadedPicture {
            name: row.try_get("name")?,
            width: number(row, "width")?,
            height: number(row, "height")?,
        },
        removed_at: row.try_get("removed_at")?,
        person_id: row.try_get("person_id")?,
        is_mask: row.try_get("is_mask")?,
    })
}

#[async_trait]
impl Uploads for PostgresStore {
    async fn begin_upload(&self, new: NewUpload, most: u32) -> Result<Option<Id>> {
        let begin = async {
            let (id, now) = (self.database.new_id(), self.database.now());
            let NewUpload { account_id, surface, person_id, is_mask } = new;
            let (surface, most) = (surface.as_str(), i64::from(most));
            let parameters: [Parameter<'_>; 7] = [&id, &account_id, &surface, &now, &most, &person_id, &is_mask];
            Ok((!self.statement(BEGIN, &parameters).await?.is_empty()).then_some(id))
        };
        self.write(Effect::BeginUpload, begin).await
    }

    async fn finish_upload(&self, id: Id, picture: UploadedPicture) -> Result<bool> {
        let sql = "UPDATE uploads SET name = $2, width = $3, height = $4, updated_at = $5
            WHERE id = $1 AND name IS NULL AND removed_at IS NULL RETURNING id";
        let finish = async {
            let UploadedPicture { name, width, height } = &picture;
            let (width, height, now) = (i64::from(*width), i64::from(*height), self.database.now());
            Ok(!self.statement(sql, &[&id, name, &width, &height, &now]).await?.is_empty())
        };
        self.write(Effect::FinishUpload, finish).await
    }

    async fn count_uploads(&self, account_id: Id) -> Result<u32> {
        let sql = "SELECT count(*) AS uploads FROM uploads WHERE account_id = $1 AND removed_at IS NULL";
        let counted = self.database.read_one(sql, &[&account_id]).await?;
        counted.map_or(Ok(0), |row| number(&row, "uploads"))
    }

    async fn held_upload(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE id = $1 AND account_id = $2 AND surface = $3 AND name IS NOT NULL"
        );
        self.database.read_one(&sql, &[&id, &account_id, &surface.as_str()]).await?.as_ref().map(upload).transpose()
    }

    async fn list_uploads(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE account_id = $1 AND surface = $2 AND id < $3 AND removed_at IS NULL AND name IS NOT NULL
             ORDER BY id DESC LIMIT $4"
        );
        // "~" sorts after every id.
        let upper = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let rows = self.database.read(&sql, &[&account_id, &surface.as_str(), &upper, &i64::from(limit)]).await?;
        rows.iter().map(upload).collect()
    }

    async fn remove_upload(&self, account_id: Id, surface: Surface, id: Id, author: Option<Id>) -> Result<bool> {
        let sql = format!(
            "UPDATE uploads SET removed_at = $4 WHERE id = $1 AND account_id = $2 AND surface = $3
             AND name IS NOT NULL AND removed_at IS NULL AND ($5::text IS NULL OR person_id = $5) RETURNING {COLUMNS}"
        );
        let remove = async |begun: &Transaction<'_>| {
            let (surface, now) = (surface.as_str(), self.database.now());
            let removed = begun.query_opt(&sql, &[&id, &account_id, &surface, &now, &author]).await?;
            Ok(removed.as_ref().map(upload).transpose()?)
        };
        let deed = |removed: &Option<Upload>| Deed::of_removed_upload(removed.as_ref()?, self.actor.as_deref()?);
        Ok(self.write(Effect::RemoveUploads, self.recorded(remove, deed)).await?.is_some())
    }

    async fn remove_uploads(&self, finished_before: Timestamp, begun_before: Timestamp) -> Result<usize> {
        let sql = "UPDATE uploads SET removed_at = $3
            WHERE removed_at IS NULL AND id < CASE WHEN name IS NULL OR surface = 'api' THEN $2::text ELSE $1::text END
            RETURNING id";
        let remove = async {
            let (finished, begun) = (Id::floor(finished_before), Id::floor(begun_before));
            Ok(self.database.write(sql, &[&finished, &begun, &self.database.now()]).await?.len())
        };
        self.write(Effect::RemoveUploads, remove).await
    }

    async fn removed_uploads(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE removed_at < $1 AND name IS NOT NULL ORDER BY removed_at LIMIT $2"
        );
        self.database.read(&sql, &[&cutoff, &i64::from(limit)]).await?.iter().map(upload).collect()
    }

    async fn forget_upload(&self, id: Id) -> Result<()> {
        let sql = "DELETE FROM uploads WHERE id = $1 AND removed_at IS NOT NULL";
        let forget = async { Ok(self.database.write(sql, &[&id]).await.map(drop)?) };
        self.write(Effect::RemoveUploads, forget).await
    }
}
