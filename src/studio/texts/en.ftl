### The texts of the studio in English. Each name is used by a page in ../pages or by the handlers.

title-create = Create
title-activity = API activity
title-keys = Keys
title-credits = Credits
title-sessions = Sessions
title-security = Security
title-account = Account
title-docs = API reference

docs-lead = Create images from your own programs. The API and the studio share credits but keep separate histories.
docs-base = Base URL
docs-key = API key (in a header)
docs-openai = For OpenAI's Images API
docs-mcp = For agents (Model Context Protocol)
docs-more = API reference and OpenAPI document
docs-example = Example
docs-inputs = Field
docs-place = In
docs-meaning = Meaning
docs-required = required
docs-status = Status

title-secret = Save this now
secret-lead = Shown on this page until you choose Done, for up to 10 minutes.
secret-done = Done
secret-gone = This is no longer shown. If you did not save it, create a new one.

title-picture = Picture
skip-pictures = Skip to the pictures
skip = Skip to the content
menu = Studio pages
signed-in-as = Signed in as { $word }
sign-out = Sign out
sign-out-here = You are signed out here.
sign-out-there = Sign out of { $word } too
credits = { $n ->
    [one] 1 credit
   *[other] { $n } credits
}
images = { $n ->
    [one] 1 picture
   *[other] { $n } pictures
}

sign-in = Sign in
sign-in-lead = Turn words into pictures.
name = Name or email
password = Password
sign-in-failed = Wrong name or password. Passwords are case-sensitive.
sign-in-often = Too many attempts to sign in with this name. Wait a minute and try again, or ask for a sign-in link.
sign-in-hint = No password? Ask the operator of this server for a sign-in link.
sign-up = Create account
sign-up-lead = Choose a name and a password. Credits come from the operator of this server.
sign-up-credits = { $n ->
    [one] You start with 1 credit.
   *[other] You start with { $n } credits.
}
sign-up-password = At least 12 characters.
sign-up-known = Sign in instead
sign-up-invalid = A name must have 1 to 100 characters.
sign-up-taken = This name cannot be used. Choose another one.
sign-up-often = Too many accounts were created from your network today. Try again tomorrow, or ask the operator of this server for an account.
to-sign-up = Create account
oidc-sign-in = Sign in with { $word }
oidc-title = Sign in with your organisation
oidc-found = You are signed in there as { $word }.
oidc-confirm = If that is you, link this identity. Signing in at { $word } then also signs you in here.
oidc-link = Link
oidc-leave = Don't link
oidc-linked = You can sign in with { $word }.
oidc-unlinked = Link your identity at { $word } to sign in with it.
oidc-unlink = Remove
oidc-unusable = Your organisation's sign-in is not responding. Try again later, or sign in another way.
oidc-failed = Your organisation's sign-in could not be confirmed. Try again. If it fails again, tell the operator of this server.
oidc-refused = Your organisation did not sign you in. Try again.
oidc-lost = This sign-in began in another browser, took too long, or has already ended. Begin again.
oidc-unknown = This identity is not linked to an account here. Sign in another way and link it on the Security page, or ask the operator of this server for an account.
oidc-disabled = This account is disabled. Ask the operator of this server.
oidc-shut-out = Your organisation no longer gives you access to this account. Ask your administrator.
oidc-taken = This identity is linked to another person here, or you have already linked another one.
oidc-only = This identity is your only way to sign in. Set a password before you remove it.
link-lead = One-time sign-in link for { $word }
link-used = This link has been used or has expired. Ask for a new one.
signed-out = You are signed out.
session-ended = Your session has ended. Your last step was not saved.
to-sign-in = Go to the sign-in page

prompt = Describe a picture
prompt-example = A red fox in the snow at dawn, watercolour
shape = Shape
number = Pictures
make = Create
preset = Preset
preset-default = Standard
no-preset = The preset { $word } no longer exists. Choose another one.
settings = Settings
settings-hint = Leave a field empty to let the preset choose.
setting-seed = Seed
setting-negative_prompt = Exclude
setting-steps = Steps
setting-guidance_scale = Guidance
setting-strength = Difference from the reference
setting-not-taken = This preset does not support the setting "{ $word }". Leave it empty, or choose another preset.
same-again = Create again with this seed
references = References
references-hint = Public https links, one per line. At most four references in total.
references-links = Links
reference = Reference
reference-remove = Remove this reference
use-as-reference = Use as reference
upload = Upload, paste or drop pictures
upload-broken = Upload interrupted. Try again.
form-filled = The form now has what this picture was created with.
upload-remove = Delete
upload-remove-sure = This deletes the picture for good.
upload-mask = Mask
upload-refused = Only owners can delete other people's uploads.
upload-four = A picture can have at most four references.
upload-too-large = This file is larger than 20 MiB.
upload-too-many = This account has reached its limit of uploads. Delete some.
upload-busy = Too many uploads at the moment. Try again.
upload-too-many-rejected = Too many of this account's files were rejected. Try again in a few seconds.
upload-no-credits = This account has too few credits for a picture. Ask the operator of this server for more.
upload-disk-full = This server's disk is nearly full, so it accepts no uploads. Tell its operator.
upload-not-a-picture = This file cannot be read. Use a PNG, JPEG or WebP picture that is not damaged and not too large.
mask-title = Paint what should change
mask-lead = Only the painted part changes. The rest of the picture stays as it is.
mask-paint = Paint
mask-edit = Edit mask
mask-keys = With the keyboard: arrow keys move the brush, Shift and arrow keys paint, Space paints a dot.
mask-brush = Brush
mask-erase = Erase
mask-done = Use this mask
mask-remove = Remove mask
mask-empty = Nothing is painted yet. Paint the part that should change.
mask-unfit = The mask was painted on another picture. Remove it, or paint it again.
mask-gone = The mask was deleted. Paint it again, or create the picture without it.
mask-not-taken = This preset does not support masks with this many references. Remove the mask or some references, or choose another preset.
references-not-taken = This preset does not support references. Remove them, or choose another preset.
board-none = None
no-reference = Reference { $n } no longer exists. Remove it and try again.
title-uploads = Account uploads
uploads-lead = Pictures uploaded to this account as references. They are deleted after 30 days. An account can have up to { $n }.
uploads-empty = No uploads yet. Add pictures beside the prompt.
refunded = { $n ->
    [one] 1 credit refunded.
   *[other] { $n } credits refunded.
}
remix-all = Everything
remix-prompt = Prompt only
remix-shape = Shape only
remix-references = References only
compare = Compare
compare-first = First picture
compare-second = Second picture
compare-over = Overlay
compare-range = Divider position
compare-swap = Swap
compare-other = Choose another picture
compare-choose = Choose the picture to compare with.
empty-gallery = No pictures yet. Describe one above, and it appears here.
your-pictures = Your latest pictures
older = Show older pictures
waiting = Waiting
waiting-place = Waiting, number { $n } in your queue
working = Rendering
working-steps = Rendering, step { $word }
left = about { $n } s left
elapsed = { $n } s so far
failed = Failed
cancel = Cancel
cancelled = Cancelled
stop = Stop
stop-over-share = Your team has stopped too many pictures in the last 24 hours, so this one continues. Let it finish, then delete it.
stop-refused = Only owners can stop other people's pictures.
again = Again
remix = Remix
download = Download
copy-link = Copy link
copy-address = Copy picture URL
copied = Copied
offline = You are offline. Try again when you are connected.
unanswered-make = The server did not answer. Try again. Nothing is charged twice.
unanswered = The server did not answer. Reload the page to see what has changed, and try again.
close = Close
more = More
viewer-before = Previous picture
viewer-after = Next picture
picture-deleted = This picture has just been deleted.
viewer-zoom = Original size
copy-prompt = Copy prompt
picture-size = Picture size
board-find = Find a board
chosen-clear = Clear selection
zip-most = Too many for one ZIP file. Select at most { $n }.
details = Details
created = Created
picture-id = ID
task-id = Task
request-id = Request ID
state = State
kind = Type
back = Back
no-credits = This costs { $word } credits, and the account has too few. Ask the operator of this server for more.
too-many = This account has too many unfinished pictures. Wait until some of them are done.
too-fast = You are creating pictures too fast. Try again in { $n } s.
suspended = You are suspended and cannot create pictures, because some of your prompts broke the content policy. Only the operator of this server can lift the suspension.
suspended-owner = You are suspended, because some of your prompts broke the content policy. Until the operator of this server lifts the suspension, you cannot add people, change roles, make sign-in links, or create, rotate or enable keys.
too-many-failed = Too many pictures of this account have failed. Try again in { $n } s.
overloaded = The queue is too long for another picture at the moment. Try again in { $n } s.
unknown-outcome = The server could not confirm your request. Look at your latest pictures before you try again.
viewer-refused = You can view pictures here. Ask an owner of this account if you want to create some.
viewer-change-refused = Viewers cannot change anything. Ask an owner.
owner-refused = Only owners of this account can do that.

failure-policy = The content policy does not allow this.
failure-references = { $n ->
    [0] This server does not support reference pictures. Remove them.
    [one] This server accepts one reference picture. Remove the others.
   *[other] This server accepts up to { $n } reference pictures. Remove the others.
}
failure-no-engine = No engine on this server can create such pictures. Choose another preset.
failure-engine = The pictures could not be created.
failure-lost = The pictures could not be created after several attempts.
failure-expired = The pictures were not ready within 9 minutes.
failure-cancelled = Cancelled.
failure-operator = Stopped by the operator of this server.
failure-operator-said = Stopped by the operator of this server: { $word }
reference-unusable = Reference { $n } cannot be used. Choose another picture.
reference-address = This server does not download from the address of reference { $n }. Upload the picture instead.
reference-unreachable = Reference { $n } could not be downloaded. Check its link, or upload the picture.
reference-too-large = Reference { $n } is too large. Use a smaller picture.
reference-not-an-image = Reference { $n } is not a PNG, JPEG or WebP picture.
reference-damaged = Reference { $n } is damaged. Use another picture.
reference-gone = Reference { $n } was deleted.
reference-mask-gone = The mask of reference { $n } was deleted.
reference-mask-size = The mask of reference { $n } and the picture differ in size.
prompt-empty = Describe the picture first.
prompt-character = The text has a character that cannot be stored (U+0000). Remove it.
prompt-long = The description is too long. It can have 32,000 characters.
shape-unknown = Choose one of the shapes.
number-unknown = Choose 1 to 4 pictures.
link-scheme = Reference { $n } is not a link. Use one that begins with https://, or upload the picture.
link-long = The link of reference { $n } is too long. It can have 4,096 characters.
link-password = The link of reference { $n } has a user name or password. Remove it, or upload the picture.
link-port = The link of reference { $n } names a port that this server does not use. Upload the picture instead.
link-private = The link of reference { $n } does not lead to a public address. Upload the picture instead.
link-malformed = The link of reference { $n } is not valid. Copy it again.
setting-whole = { $word }: enter a whole number from { $least } to { $most }.
setting-range = { $word }: enter a number from { $least } to { $most }.
setting-long = { $word }: enter at most { $most } characters.

activity-lead = Tasks that programs created with this account's keys. You can open their pictures here, but not change anything.
activity-empty = No API tasks yet.
activity-more = Show older tasks
prompt-column = Prompt
time = Time

keys-lead = Your programs call the API with these keys and spend this account's credits. “Last used” can lag by a minute.
keys-empty = No keys yet.
key-name = Label
key-new = Create key
key-expiry = Expires after
key-never = Never
key-days = { $n } days
key-created = This is the new key. Copy it now: it is not shown again.
key-copy = Copy key
key-made-by = Made by { $word }
key-made-by-former = Made by a former member
key-hint = Key
key-used = Last used
key-unused = Never
key-disable = Disable
key-enable = Enable
key-revoke = Revoke
key-revoke-sure = Programs with this key stop working. This cannot be undone.
key-rotate = Rotate
key-rotated = { $n ->
    [0] This is the new key. The old one no longer works. Copy the new one now: it is not shown again.
    [one] This is the new key. The old one works for 1 more hour. Copy the new one now: it is not shown again.
   *[other] This is the new key. The old one works for { $n } more hours. Copy the new one now: it is not shown again.
}
key-leaked = This key was sent in a URL, so others may have read it. Rotate it and give the new one to your program.
key-suspended = This key is suspended, because tasks with it broke the content policy. Ask the operator of this server.
key-state-active = Active
key-state-disabled = Disabled
key-state-expired = Expired
key-state-revoked = Revoked
key-state-suspended = Suspended

credits-lead = A picture costs 2 credits, charged at once and refunded if it fails.
credits-left = Balance
low-balance = Low credits: webhooks fire when the balance falls below { $n }.
low-balance-none = Low credits: no threshold is set, so no webhook fires. To set one:
whole-number = A whole number, digits only
credits-amount = Change
credits-balance = Balance
credits-note = Note
credits-grant = Grant
credits-charge = Charge
credits-refund = Refund
credits-csv = Download as CSV
credits-empty = No entries yet.
credits-more = Show older entries

sessions-lead = Browsers where you are signed in.
session-this = This browser
session-end = End session
sessions-end = Sign out everywhere else
session-seen = Last used
session-agent = Browser

error-title = Something went wrong
error-not-found = This page does not exist, or it is not yours.
picture-in-bin = This picture is in the bin.
error-request = The form could not be read. Go back, reload the page and try again.
error-origin = The form came from another page. Open the studio in this browser and try again.
error-old-form = You have signed in again since this page was loaded. Reload it and try again.
error-https = The studio works over HTTPS only.
error-internal = Something went wrong on our side. Nothing was charged. Try again.
error-rate = Too many attempts. Wait a minute and try again.
error-id = Tell the operator of this server this ID:

search = Search
yes = Yes
no = No
account = Account
tasks = Tasks
seen = Last report
ago = { $word } ago

months = Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec
axis-day = { $n } { $word }
chart-most = peak { $word }
chart-table = As a table
chart-value = Value
chart-empty = Nothing to show yet.
chart-completed = Completed tasks by hour (UTC)
chart-failed = Failed tasks by hour (UTC)
chart-waiting = Average wait, by hour submitted (UTC)
chart-rendering = Average render time per task, by hour (UTC)
chart-image = Average render time per picture, by hour (UTC)

title-people = People
people-lead = People who can sign in to this account. Viewers see pictures, members also create them, and owners also manage keys and people.
people-add = Add person
people-link = One-time sign-in link for { $word }, valid for 15 minutes. Copy it now: it is not shown again.
people-make-link = Sign-in link
people-remove = Remove
people-remove-sure = This person is signed out everywhere and can no longer sign in. Keys that they made continue to work. You can revoke them on the Keys page.
people-self = This is you
people-empty = No one can sign in to this account.
people-invalid = A name must have 1 to 100 characters, without line breaks.
name-look-alike = Use letters of one alphabet in each word of a name, and no invisible characters.
people-taken = This name cannot be used. Choose another one.
people-full = This account has reached its limit of people.
people-own = You cannot change or remove yourself. Ask another owner.
people-suspended = This person is suspended for violations of the content policy. Only the operator of this server can remove them.
invite-title = Invite several people
invite-lead = One link lets several people join this account. Each of them chooses a name and a password.
invite-places = Number of people
invite-make = Create invitation
invite-link = { $n ->
    [one] One person can join this account with this link. Copy it now: it is not shown again.
   *[other] Up to { $n } people can join this account with this link. Copy it now: it is not shown again.
}
invite-full = This account has reached its limit of open invitations. Revoke one first.
invite-open = Open invitations
invite-left = Places left
invite-idle = Paused: this person is suspended, or no longer an owner.
invite-revoke-sure = The link stops working at once. People who have joined stay.
join = Join
join-to = Join { $word }
join-lead = Choose a name and a password.
join-signed-in = You are signed in as { $word }. To join under another name, sign out first, then open this link again.
join-stay = Go to the studio
join-gone = This invitation doesn't work. It may have expired or been revoked, or all its places are taken. Ask whoever sent it for a new one.
audit-invite = Invitation created
audit-revoke-invitation = Invitation revoked
role = Role
role-of = Role of { $word }
role-change = Change
role-viewer = Viewer
role-member = Member
role-owner = Owner

title-operator = Operator
operator-overview = Overview
operator-accounts = Accounts
operator-strikes = Strikes
operator-audit = Audit log
queue-waiting = Waiting tasks
queue-leased = Running tasks
queue-oldest = Age of the oldest task
queue-pause = Pause queue
queue-resume = Resume queue
queue-paused = The queue has been paused since { $word }. New tasks are accepted, but wait.
day-title = The last 24 hours
day-completed = Tasks completed in 24 h
day-failed = Tasks failed in 24 h
reasons-title = Why tasks failed
reasons-empty = No tasks failed in the last 24 hours.
reason = Reason
reason-other = Other reasons
engines-title = Engines
engines-empty = No worker has reported an engine yet.
engine = Engine
engine-workers = Workers
workers-title = Workers
worker = Worker
worker-slots = Parallel renders
worker-mean = Average time per task
image-mean = Average time per picture
worker-available = Ready
worker-unavailable = Engine not available
worker-silent = No recent report
name-contains = Name contains
people-of = People in { $word }.
people-all = All people in this account
people-none = No people match.
people-more = Show more people
session-end-sure = Anyone using that browser must sign in again.
strikes-lift-sure = The strikes are cleared and the suspension ends. This cannot be undone.
key-enable-sure = Programs with this key work again. Its strikes are cleared.
key-disable-sure = Programs with this key stop working until you enable it.
key-budget-sure = You can lower the budget later. Only the operator of this server can raise or remove it.
grant-sure = { $word } can spend the credits at once. The studio cannot take them back, only the command line can.
accounts-empty = No accounts match.
accounts-more = Show more accounts
account-active = Active
account-disabled = Disabled
account-deleted = Deleted
account-admin = Operator
account-suspended-keys = { $n ->
    [one] 1 suspended key
   *[other] { $n } suspended keys
}
account-disable = Disable account
account-disable-hint = Its keys and people are locked out, and its webhooks wait, until you enable it. Unfinished tasks continue.
account-enable = Enable account
account-own = You cannot disable your own account.
account-ledger = Latest ledger entries
account-deleted-refusal = This account was deleted. Nothing was granted.
grant = Grant
grant-amount = Credits
grant-invalid = Nothing was granted. Enter a whole number of credits above zero, a note of at most 500 characters, and at least 1 whole day if the credits expire.
grant-repeated = Credits were granted since this page was loaded, perhaps by the same form. Nothing more was granted: check the ledger below.
key-leaked-short = Seen in a URL
strikes = Strikes
strikes-lead = Keys and people whose tasks broke the content policy. Lifting strikes clears them and ends the suspension. A disabled key stays disabled.
strikes-empty = No keys have strikes.
strikes-empty-people = No people have strikes.
strikes-lift = Lift strikes

audit-lead = Changes to accounts, credits, keys, people, the queue and tasks, newest first.
audit-all = Show all accounts
audit-empty = No changes yet.
audit-actor = By
audit-action = Change
audit-subject = Subject
via-command = Command line
via-studio = Studio
via-server = Server
audit-create-account = Account created
audit-enable-account = Account enabled
audit-disable-account = Account disabled
audit-delete-account = Account deleted
audit-grant = Credits granted
audit-take = Credits taken
audit-create-key = Key created
audit-enable-key = Key enabled, strikes lifted
audit-undisable-key = Key enabled
audit-lift = Strikes lifted
audit-suspend-person = Person suspended
audit-suspend-key = Key suspended
audit-disable-key = Key disabled
audit-revoke-key = Key revoked
audit-rotate-key = Key rotated
audit-sign-up = Account created by sign-up
audit-add-person = Person added
audit-shut-out = Access ended by the organisation
audit-change-role = Role changed
audit-set-password = Password set
audit-remove-person = Person removed
audit-make-link = Sign-in link created
audit-link-identity = Identity linked
audit-unlink-identity = Identity removed
audit-add-endpoint = Webhook added
audit-enable-endpoint = Webhook enabled
audit-disable-endpoint = Webhook disabled
audit-rotate-endpoint = Webhook secret rotated
audit-subscribe-endpoint = Webhook events changed
audit-remove-endpoint = Webhook removed
audit-replay-delivery = Webhook sent again
audit-pause-queue = Queue paused
audit-resume-queue = Queue resumed
audit-fail-task = Task failed and refunded
suspended-for = { $n ->
    [one] 1 violation of the content policy within { $word }
   *[other] { $n } violations of the content policy within { $word }
}
within-days = { $n ->
    [one] 1 day
   *[other] { $n } days
}
within-hours = { $n ->
    [one] 1 hour
   *[other] { $n } hours
}
within-minutes = { $n ->
    [one] 1 minute
   *[other] { $n } minutes
}
within-seconds = { $n ->
    [one] 1 second
   *[other] { $n } seconds
}
audit-policy = Content policy
audit-by-invitation = by invitation
audit-places = { $n ->
    [one] 1 place
   *[other] { $n } places
}
audit-until = until { $word }
audit-gone = its receiver answered 410 Gone
audit-failing = deliveries failed for too long
audit-unknown = Change by a newer version of this server

credits-use = Credits used per day (UTC)
credits-days = { $n } days
credits-period = Chart period
credits-kind = Type
credits-all = All types
credits-opening = Opening balance
credits-from = From
credits-until = Until
credits-filter = Filter

key-submit-rate = Requests per minute (create)
key-read-rate = Requests per minute (read)
key-default = Server default
key-rate-too-high = A key's limits cannot be above this server's, and 0 means no limit. Enter a lower number, or leave the field empty. Only the operator of this server can raise limits.
key-budget-raised = You can only lower a budget. Ask the operator of this server to raise or remove it.
key-account-budget = The operator of this server has set a budget for a key of this account, so you cannot create other keys. Rotate that key, or ask the operator.
key-account-struck = Too many keys of this account are suspended for violations of the content policy. You cannot create, rotate or enable keys until the operator of this server lifts the suspensions.
key-rate-invalid = Enter a limit as a whole number of requests per minute; 0 means no limit.
key-name-invalid = A label can have at most 100 characters, without line breaks.
key-limits = Limits
key-unlimited = Unlimited
key-too-many = This account has reached its limit of keys. Revoke some.
key-overlap = The old key works
key-hours = { $n ->
    [0] no longer
    [one] for 1 more hour
   *[other] for { $n } more hours
}
key-expires = expires { $word }

password-title = Password
password-lead = A new password signs you out everywhere else. Use at least 12 characters.
password-current = Current password
password-new = New password
password-set = Set password
password-done = The password is set, and you are signed out everywhere else.
password-wrong = That is not your current password.
password-short = Use at least 12 characters.
password-common = This password is too easy to guess. Choose several unrelated words.
password-name = A password must not contain your name, your account's name or this service's name.

title-gallery = Gallery
search-example = Search prompts
filters = Filters
filters-none = Clear filters
filters-on = Active filters
filter-remove = Remove filter:
any = Any
kind-text = Text to image
kind-image = Image to image
gallery-completed = Completed
gallery-processing = In progress
gallery-all = All
gallery-new = No pictures yet.
gallery-begin = Create your first
board-create-for = Create pictures for it
board-empty = This board is empty. Select pictures in the gallery and choose Add to board.
gallery-empty = No pictures match. Try other words, or clear the filters.
gallery-on = No match among the latest pictures. Older ones may match.
gallery-keys = Shortcuts: arrow keys move, Enter opens, Space selects (with Shift a range), 1 to 4 select single pictures, Ctrl+A selects all, S stars, Delete deletes, / searches, Esc clears.
star = Star
unstar = Unstar
starred = Starred
delete = Delete
delete-pictures = Delete { $n } pictures
undo = Undo
zip-busy = This account is downloading several files. Try again when one is complete.
undo-late = Some pictures have been erased and cannot be restored.
deleted = { $n ->
    [one] Moved to the bin.
   *[other] { $n } moved to the bin.
}
choose = Select
choose-first = Select pictures first.
chosen = { $n } selected
chosen-none = None selected
chosen-do = For the selected pictures
chosen-alone = Download saves just these pictures. Everything else also applies to those created with them.
board = Board
boards = Boards
boards-change = Manage boards
board-new = New board
board-create = Create board
board-rename = Rename board
board-remove = Remove board, keep pictures
board-remove-sure = This removes the board for good. Its pictures stay.
board-put = Add to board
board-take = Remove from board
board-name = Enter a name of 1 to 60 characters.
board-taken = Another board has this name.
board-not-possible = You have reached the limit of boards. Remove one you no longer need.
download-details = Download with prompt
download-details-too = prompts inside the files
download-details-lead = The file also contains the prompt and settings. Drop it on the prompt box to fill in the form again.
download-zip = Download ZIP
copy-as = Copy as code
copy-as-lead = The same request as a program. It reads the key from the environment variable TINTYPE_KEY.
copy-as-own = References to your own pictures are left out: programs need https links.
copy = Copy
key-budget = Budget in credits
key-budget-none = None
key-budget-set = Set budget
key-budget-change = Change budget
key-period = Budget period
key-per-day = per day
key-per-week = per week
key-per-month = per month
key-budget-spent = { $n } spent
key-budget-left = { $n } left
key-budget-resets = resets at { $word }
key-budget-invalid = Enter a budget as a whole number of credits above zero per day, week or month, or leave it empty for none.
audit-change-budget = Key budget set
credits-expiry = Expiry
credits-taken = Taken
title-usage = Usage
usage-lead = Charges and refunds of this account. A task is one request, for up to four pictures. A refund counts on the day it was made.
usage-by = Group by
usage-by-key = By key
usage-by-day = By day
usage-period = Period
usage-day = Day
usage-tasks = Tasks
usage-images = Pictures
usage-charged = Charged
usage-refunded = Refunded
usage-total = Total
usage-net = Net credits
usage-days = Days: { $word } (UTC)
usage-empty = No charges or refunds in this period.
usage-studio = Studio
usage-unknown-key = Unknown key
grants-title = Credits that expire
grants-expiry = Expires
grants-left = Left
grants-granted = Granted
grant-days = Expires after (days)
audit-low-balance = Low-credit threshold set

title-webhooks = Webhooks
webhooks-lead = The server calls these URLs when an API task ends, credits run low, or a key is suspended. Each request is signed with the endpoint's secret (Standard Webhooks).
webhooks-empty = No endpoints yet.
webhooks-care = Some deliveries have been failing. Check the marked endpoints.
webhooks-all = All webhooks
webhook-url = URL
webhook-events = Events
webhook-new = Add endpoint
webhook-created = This is the new endpoint's signing secret. Copy it now: it is not shown again.
webhook-copy = Copy secret
webhook-rotated = { $n ->
    [0] This is the new secret. Copy it now: it is not shown again. The old one no longer signs.
    [one] This is the new secret. Copy it now: it is not shown again. The old one also signs for 1 more hour.
   *[other] This is the new secret. Copy it now: it is not shown again. The old one also signs for { $n } more hours.
}
webhook-url-invalid = Enter a URL that begins with https://, without a user name, spaces, or a part after #.
webhook-plain-http = This server sends to http:// URLs only in networks that it was started with (--webhook-network). Use https://.
webhook-out-of-reach = This server sends to this address only if it is started with its network (--webhook-network).
webhook-no-event = Choose at least one event.
webhook-too-many = This account has reached its limit of endpoints. Remove some.
webhook-disabled = This endpoint is disabled. Enable it first.
webhook-of-operator = The operator of this server added this endpoint. Only the operator can change it.
webhook-enable = Enable
webhook-disable = Disable
webhook-test = Send test
webhook-overlap = The old secret works
webhook-rotate = Rotate secret
webhook-remove = Remove
webhook-remove-sure = Nothing more is sent to this URL, including deliveries that are still waiting. Its secret and deliveries are deleted for good.
webhook-subscribe = Change events
webhook-deliveries = Deliveries
endpoint-active = Active
endpoint-failing = Failing since { $word }; retrying
endpoint-gone = Disabled, because its receiver answered 410 Gone
endpoint-dead = Disabled, because nothing could be delivered since { $word }
endpoint-disabled = Disabled
deliveries-lead = Deliveries of the last week, newest first. Reload to see the result of a test.
deliveries-empty = No deliveries yet.
delivery-event = Event and ID
delivery-attempts = Attempts
delivery-last = Last response
delivery-next = Next attempt
delivery-replay = Send again
delivery-waiting = Waiting
delivery-delivered = Delivered
delivery-failed = Failed
delivery-timeout = No response in time
delivery-unreachable = No connection or no HTTP response: check the host name, port and certificate
delivery-address = The address is in a network that this server does not call

title-factor = Two-factor authentication
factor-lead = An authenticator app on your phone shows a new code every 30 seconds. Once it is set up, signing in with a password or a link also needs that code. Scan the QR code with the app, or type the secret into it.
factor-picture = QR code for the authenticator app
factor-secret = Secret:
factor-uri-copy = Copy setup link
factor-on = Turn on
factor-off = Turn off
factor-is-on = Two-factor authentication is on. Signing in with a password or a link also needs a code from your authenticator app.
factor-codes-left = { $n ->
    [one] You have 1 recovery code left.
   *[other] You have { $n } recovery codes left.
}
factor-codes-new = Create new recovery codes
factor-codes-lead = These are your recovery codes. Each one replaces the app once. Keep them in a safe place: they are not shown again, and older ones no longer work.
factor-codes-copy = Copy codes
factor-code-wrong = The code is wrong, or two-factor authentication is already on. Nothing was changed. Check your phone's clock and try the next code.
factor-wrong = The password or the code is wrong, or the code has been used. Nothing was changed.
factor-late = This page was open for too long. Here is a new secret.
factor-required = The operator of this server requires two-factor authentication. Set it up to continue.
factor-open = Set up
factor-manage = Manage
factor-none = Two-factor authentication is off.
factor-short = 2FA
factor-reset = Reset 2FA
factor-reset-sure = This person can then sign in without a code, and is signed out everywhere. Make sure that they asked for this themselves.
code = Code
code-lead = Type the code that your authenticator app shows now.
code-hint = App lost? Type one of your recovery codes, or ask the operator of this server to reset two-factor authentication.
code-wrong = The code is wrong or has been used. Wait for the next one.
code-often = Too many wrong codes. Wait five minutes and try again.
sign-in-late = This sign-in took too long or has already ended. Begin again.
confirm-password = Your password
confirm-either = Your password or a code
confirm-code = A code from your app
confirm-wrong = The password or the code is wrong, or the code has been used. Nothing was changed. Go back and try again.
confirm-late = You can do this only if you signed in within the last ten minutes. Sign in again, at your organisation or with a new sign-in link, and try again. The operator of this server creates links with: tintype person link.
audit-add-factor = Two-factor authentication turned on
audit-remove-factor = Two-factor authentication turned off
audit-reset-factor = Two-factor authentication reset
audit-recovery-codes = New recovery codes created
title-bin = Bin
bin-lead = { $n ->
    [one] Deleted pictures stay here for one day. Then they are erased.
   *[other] Deleted pictures stay here for { $n } days. Then they are erased.
}
bin-empty = The bin is empty.
bin-restore = Restore
bin-restore-all = Restore all
bin-erase = Delete for good
bin-erase-sure = The selected pictures are erased within minutes. They cannot be restored.
bin-erase-all = Empty bin
bin-erase-all-sure = All pictures in the bin are erased within minutes. They cannot be restored.
delete-refused = Only owners can delete other people's pictures. Nothing was deleted.
created-by = Created by
everyone = Everyone
mine = Mine
usage-by-person = By person
usage-api = API
usage-former-person = Former member
audit-delete-task = Someone else's picture deleted
audit-remove-upload = Someone else's upload deleted
bin-lead-hours = { $n ->
    [one] Deleted pictures stay here for one hour. Then they are erased.
   *[other] Deleted pictures stay here for { $n } hours. Then they are erased.
}

share = Share
share-lead = Anyone with the link can see this board, and what is added to it later, without signing in.
share-pictures = { $n ->
    [one] Anyone with the link can see this picture without signing in.
   *[other] Anyone with the link can see all { $n } pictures without signing in.
}
share-for = Expires
share-days = { $n ->
    [one] In { $n } day
   *[other] In { $n } days
}
share-forever = Never, until revoked
share-prompts = Show prompts
share-make = Create link
share-made = Link created. Anyone who has it can see what you shared.
share-full = This account has reached its limit of shared links. Revoke one first.
title-links = Shared links
links-empty = No shared links yet. Open a picture or board and choose Share.
link-shows = Content
link-ends = Expires
link-views = Views
link-open = Open
link-revoke = Revoke
link-revoke-sure = The link stops working at once.
shared-picture = A shared picture
shared-pictures = Shared pictures
picture-number = Picture { $n }
shared-empty = No pictures here yet.
shared-foot = Made with AI in Tintype.
shared-gone = This link doesn't work. It may have expired or been revoked. Ask whoever sent it for a new one.
audit-share = Shared link created
audit-unshare = Shared link revoked

board-private = Visible only to me
board-publish = Share with the team
board-gone = This board no longer exists. Choose another one.
board-unseen = This board is gone, or visible only to the person who made it.
board-mine = private
board-count = { $n ->
    [one] { $n } picture
   *[other] { $n } pictures
}
boards-empty = No boards yet. Put pictures on a board to find them together.
board-many = { $word } pictures
server-away = Can't reach the server. Reconnecting…
no-script = JavaScript is off, so this page does not update by itself.
no-script-reload = Reload
queue-is-paused = The queue is paused. New pictures start when it resumes.
fresh = { $n } new
notices = Notify me when pictures are ready
shape-square = Square
shape-story = Story
shape-wide = Wide
shape-poster = Poster
shape-others = More ratios
example-1 = A lighthouse on a cliff at dusk, oil on canvas
example-2 = Red fox in fresh snow, photo with soft morning light
example-3 = Poster for a jazz night, bold shapes, three colours
example-4 = Isometric drawing of a small harbour with boats
choose-found = Select all { $n } found
choose-all = Select all
started = Started. The picture appears first in Create.
board-added = Added to the board.
board-taken-off = Removed from the board.
zip-none = None of the selected pictures is finished.
board-publish-sure = Everyone on your team can then see and change it.
board-private-other = A private board
