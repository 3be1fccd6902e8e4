-- A publication of all tables stops the updates of a table without a primary key, and so stopped every write.
ALTER TABLE tintype ADD PRIMARY KEY (version);
