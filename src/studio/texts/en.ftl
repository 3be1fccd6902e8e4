### The texts of the studio in English. Each name is used by a page in ../pages or by the handlers.

title-create = Create
title-activity = API activity
title-keys = Keys
title-credits = Credits
title-sessions = Sessions
title-account = Account
title-docs = API reference

docs-lead = Create images from your own programs. Tasks of the API and of the studio spend the same credits, and do not see each other.
docs-base = Address
docs-key = Key, in a header
docs-openai = For programs that speak OpenAI's Images API
docs-mcp = For agents that speak the Model Context Protocol
docs-more = Try it in the browser, and for generators of clients
docs-example = An example
docs-inputs = Field
docs-place = In
docs-meaning = Meaning
docs-required = required
docs-status = Status

title-secret = Save this now
secret-lead = This page shows it until you choose Done, for 10 minutes at most.
secret-done = Done
secret-gone = This is no longer shown. If you did not save it, create a new one.

title-picture = Picture
skip = Skip to the content
menu = Pages of the studio
signed-in-as = Signed in as { $word }
sign-out = Sign out
sign-out-here = You have signed out here.
sign-out-there = Sign out of { $word } too
credits = { $n ->
    [one] 1 credit
   *[other] { $n } credits
}
images = { $n ->
    [one] 1 image
   *[other] { $n } images
}

sign-in = Sign in
sign-in-lead = Make pictures from words.
name = Name or e-mail
password = Password
sign-in-failed = This name and password do not belong together. Passwords are case-sensitive.
sign-in-often = There were too many attempts to sign in with this name. Wait a minute and try again, or ask for a sign-in link.
sign-in-hint = No password? Ask the operator of this server for a sign-in link.
sign-up = Create an account
sign-up-lead = Choose a name and a password. The operator of this server gives out credits.
sign-up-credits = { $n ->
    [one] You get 1 credit to start with.
   *[other] You get { $n } credits to start with.
}
sign-up-password = At least 12 characters.
sign-up-known = Sign in instead
sign-up-invalid = A name has 1 to 100 characters.
sign-up-taken = This name cannot be used. Choose another one.
sign-up-often = Too many accounts were created from your network today. Try again tomorrow, or ask the operator of this server for an account.
to-sign-up = Create an account
oidc-sign-in = Sign in with { $word }
oidc-title = Sign-in by your organisation
oidc-found = You came back as { $word }.
oidc-confirm = If that is you, link it. From then on, signing in at { $word } signs you in here.
oidc-link = Link
oidc-leave = Leave it as it is
oidc-linked = You can sign in with { $word }.
oidc-unlinked = Link your identity at { $word } to sign in with it.
oidc-unlink = Remove
oidc-unusable = The sign-in of your organisation does not answer. Try again later, or use another way to sign in.
oidc-failed = The sign-in of your organisation could not be confirmed. Try again; if it fails again, tell the operator of this server.
oidc-refused = Your organisation did not sign you in. Try again.
oidc-lost = This sign-in began in another browser, took too long, or has ended already. Begin again.
oidc-unknown = Nobody here has linked this identity. Sign in another way and link it on the page of your sessions, or ask the operator of this server for an account.
oidc-disabled = This account is disabled. Ask the operator of this server.
oidc-shut-out = Your organisation no longer gives you access to this account. Ask your administrator.
oidc-taken = This identity is linked with another person here, or you have linked another one.
oidc-only = You sign in with this identity alone. Set a password before you remove it.
link-lead = This link signs you in as { $word }, once.
link-used = This link has been used already, or its time is over. Ask for another one.
signed-out = You are signed out.
to-sign-in = Go to the sign-in page

prompt = Describe a picture
prompt-example = A red fox in the snow at dawn, watercolour
shape = Shape
number = Images
make = Create
preset = Preset
preset-default = Standard
no-preset = There is no preset { $word } any more. Choose another one.
settings = Settings
settings-hint = Leave a field empty to let the preset choose.
setting-seed = Seed
setting-negative-prompt = Leave out
setting-steps = Steps
setting-guidance-scale = Guidance
setting-strength = Distance from the reference
setting-not-taken = This preset does not take the setting "{ $word }". Leave it empty, or choose another preset.
same-again = Make the same again
references = Reference images
references-hint = Public https links, one in each line. At most four references in all.
references-links = Links
reference = Reference image
reference-remove = Remove this reference
use-as-reference = Use as reference
upload = Upload, paste or drop pictures
upload-broken = The upload broke off. Try again.
upload-remove = Delete
upload-remove-sure = The picture is then gone for good.
upload-four = A task takes at most four references.
upload-too-large = This file has more than 20 MiB.
upload-too-many = This account has as many uploads as it may have. Delete some of them.
upload-busy = Too many uploads arrive at this moment. Try again.
upload-too-many-rejected = Too many files of this account were rejected. Try again in a few seconds.
upload-no-credits = This account has too few credits for a picture. Ask the operator of this server for more.
upload-disk-full = The disk of this server is nearly full, so it takes no uploads. Tell its operator.
upload-not-a-picture = This file is not a PNG, JPEG or WebP picture, is damaged, or has too many pixels.
no-reference = Reference { $n } does not exist any more. Remove it, and try again.
title-uploads = Your uploads
uploads-lead = Pictures that people of this account have brought as references. They are deleted after a month; an account may have { $n }.
uploads-empty = There is no upload yet. Add pictures beside the prompt.
refunded = { $n ->
    [one] One credit came back.
   *[other] { $n } credits came back.
}
remix-all = Everything
remix-prompt = Prompt only
remix-shape = Shape only
remix-references = References only
compare = Compare
compare-first = First picture
compare-second = Second picture
compare-over = One over the other
compare-range = Share of the first picture
compare-swap = Swap
compare-other = Choose another picture
compare-choose = Choose the picture to compare with.
empty-gallery = Nothing here yet. Describe a picture above, and it appears here.
your-pictures = Your latest pictures
older = Show older pictures
waiting = Waiting
waiting-place = Waiting, number { $n } in the queue
working = Rendering
working-steps = Rendering, step { $word }
left = about { $n } s left
elapsed = { $n } s
failed = Failed
cancel = Cancel
cancel-late = Rendering has begun, so this task can no longer be cancelled.
again = Again
remix = Remix
download = Download
copy-link = Copy link
copied = Copied
unanswered = The server did not answer. Reload the page to see what has changed, and try again.
close = Close
more = More
viewer-before = Previous picture
viewer-after = Next picture
viewer-zoom = Original size
copy-prompt = Copy prompt
picture-size = Size of the pictures
board-find = Find a board
chosen-clear = Clear selection
zip-most = A ZIP file holds at most { $n } tasks. Choose fewer.
details = Details
created = Created
task-id = Task
request-id = Request id
state = State
kind = Type
back = Back
no-credits = This costs { $word } credits. Ask the operator of this server for more.
too-many = This account has too many unfinished tasks. Wait until some of them have ended.
too-fast = You create tasks too fast. Try again in { $n } s.
suspended = You are suspended from creating pictures, because your tasks violated the content policy. Only the operator of this server can lift that.
suspended-owner = You are suspended for violations of the content policy. Until the operator of this server lifts that, you cannot add people, change roles, make sign-in links, or create, rotate or enable keys.
too-many-failed = Too many tasks of this account have failed. Try again in { $n } s.
overloaded = The queue is so long that this task would not end in time. Try again in { $n } s.
unknown-outcome = It is not known whether the task was accepted. Look at your latest pictures before you try again.
viewer-refused = You may look at the pictures of this account. Ask its owner for the right to make some.
owner-refused = Only the owners of this account may do that.

activity-lead = Tasks that programs have created with the keys of this account. They are shown here and cannot be changed here.
activity-empty = No program has created a task yet.
activity-more = Show older tasks
prompt-column = Prompt
time = Time

keys-lead = Programs send a key with every call. A key acts for this account and spends its credits. The time of its last use is shown up to a minute late.
keys-empty = There is no key yet.
key-name = Label
key-new = Create a key
key-expiry = Expires after
key-never = Never
key-days = { $n } days
key-created = This is the new key. Copy it now: it is not shown again.
key-copy = Copy the key
key-hint = Key
key-used = Last used
key-unused = never
key-disable = Disable
key-enable = Enable
key-revoke = Revoke
key-revoke-sure = Programs that send this key are refused from then on, and nobody can undo that.
key-rotate = Rotate
key-rotated = { $n ->
    [0] This is the new key. The old one no longer works. Copy the new one now: it is not shown again.
    [one] This is the new key. The old one works for 1 hour more. Copy the new one now: it is not shown again.
   *[other] This is the new key. The old one works for { $n } hours more. Copy the new one now: it is not shown again.
}
key-leaked = This key was sent in a URL, so others may have read it. Rotate it, and give the new one to your program.
key-suspended = This key is suspended for violations of the content policy. Ask the operator of this server.
key-active = active
key-disabled = disabled
key-expired = expired
key-revoked = revoked
key-suspended-state = suspended

credits-lead = An image costs 2 credits. They are charged when a task is accepted, and come back when it fails.
credits-left = Balance
low-balance = Low credits: webhooks are told when the balance falls below { $n }.
low-balance-none = Low credits: no threshold is set, so no webhook is told. The operator of this server sets one.
whole-number = A whole number, in digits alone
credits-amount = Amount
credits-balance = Balance after it
credits-note = Note
credits-grant = Grant
credits-charge = Charge
credits-refund = Refund
credits-csv = Download as CSV
credits-empty = There is no entry yet.
credits-more = Show older entries

sessions-lead = You are signed in in these browsers.
session-this = This browser
session-end = Sign out there
sessions-end = Sign out everywhere else
session-seen = Last used
session-agent = Browser

error-title = Something went wrong
error-not-found = There is no such page, or it is not yours.
error-request = The form could not be read. Go back, reload the page, and try again.
error-origin = The form came from another page. Open the studio in this browser, and try again.
error-https = The studio is reachable over HTTPS only.
error-internal = Something went wrong on our side. Nothing was charged. Please try again.
error-rate = Too many attempts. Wait a minute, and try again.
error-id = Tell the operator this id:

search = Search
yes = yes
no = no
account = Account
tasks = Tasks
seen = Last report
ago = { $word } ago

chart-most = at most { $word }
chart-table = As a table
chart-value = Value
chart-empty = Nothing to show yet.
chart-completed = Completed tasks per hour
chart-failed = Failed tasks per hour
chart-waiting = Mean time that a task waits, by the hour of its submit
chart-rendering = Mean time from the claim of a task to its end
chart-image = Mean time from the claim to the end, for each image

title-people = People
people-lead = These people sign in to this account. Viewers look, members also make pictures, owners also manage keys and people.
people-add = Add a person
people-link = This link signs { $word } in, once, within 15 minutes. Copy it now: it is not shown again.
people-make-link = Sign-in link
people-remove = Remove
people-remove-sure = This person is signed out everywhere and can no longer sign in.
people-self = This is you
people-empty = Nobody can sign in to this account.
people-invalid = A name has 1 to 100 characters, without line breaks.
name-look-alike = Each word of a name has letters of one alphabet, and no character of a name is invisible.
people-taken = This name cannot be used. Choose another one.
people-full = This account has as many people as it may have.
people-own = You cannot change or remove yourself. Ask another owner.
people-suspended = This person is suspended for violations of the content policy. Only the operator of this server can remove such a person.
role = Role
role-of = Role of { $word }
role-change = Change
role-viewer = viewer
role-member = member
role-owner = owner

title-operator = Operator
operator-overview = Overview
operator-accounts = Accounts
operator-strikes = Strikes
operator-audit = Audit log
queue-waiting = Waiting tasks
queue-leased = Being rendered
queue-oldest = Age of the oldest
queue-pause = Pause the queue
queue-resume = Resume the queue
queue-paused = The queue is paused since { $word } UTC: tasks are accepted and wait.
day-title = The last 24 hours
day-completed = Completed in 24 h
day-failed = Failed in 24 h
reasons-title = Reasons of failures
reasons-empty = No task has failed in the last 24 hours.
reason = Reason, as the owner of the task reads it
reason-other = Other reasons
engines-title = Engines
engines-empty = No worker has reported an engine.
engine = Engine
engine-workers = Workers
workers-title = Workers
worker = Worker
worker-slots = Renders at a time
worker-mean = Mean time of a task
image-mean = For each image
worker-available = takes tasks
worker-unavailable = its engine is not available
worker-silent = silent
account-search = Name contains
accounts-empty = No account has such a name.
accounts-more = Show more accounts
account-active = active
account-disabled = disabled
account-deleted = deleted
account-admin = administrator
account-suspended-keys = { $n ->
    [one] 1 suspended key
   *[other] { $n } suspended keys
}
account-disable = Disable the account
account-disable-hint = Its keys and people are locked out until it is enabled. Its unfinished tasks go on.
account-enable = Enable the account
account-own = You cannot disable the account that you are signed in to.
account-ledger = Latest ledger entries
account-deleted-refusal = This account was deleted. Nothing was granted.
grant = Grant
grant-amount = Credits
grant-invalid = Nothing was granted. Give a whole number of credits above zero, a note of at most 500 characters, and at least 1 whole day if they expire.
grant-repeated = Credits were granted since this page was shown, perhaps by the same form. Nothing more was granted: look at the ledger below.
key-leaked-short = seen in a URL
strikes = Strikes
strikes-lead = Keys and people whose tasks violated the content policy. To lift strikes clears them and ends the suspension. A disabled key stays disabled.
strikes-empty = No key has a strike.
strikes-empty-people = No person has a strike.
strikes-lift = Lift the strikes

audit-lead = Changes to accounts, credits, keys, people, the queue and tasks, newest first.
audit-all = Show all accounts
audit-empty = Nothing was changed yet.
audit-actor = By
audit-action = Change
audit-subject = Subject
via-command = command line
via-studio = studio
via-server = server
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
audit-sign-up = Account opened in the studio
audit-add-person = Person added
audit-shut-out = Access ended by the organisation
audit-change-role = Role changed
audit-set-password = Password set
audit-remove-person = Person removed
audit-make-link = Sign-in link made
audit-link-identity = Identity linked
audit-unlink-identity = Identity removed
audit-add-endpoint = Webhook added
audit-enable-endpoint = Webhook enabled
audit-disable-endpoint = Webhook disabled
audit-rotate-endpoint = New secret of a webhook
audit-subscribe-endpoint = Events of a webhook changed
audit-remove-endpoint = Webhook removed
audit-replay-delivery = Webhook sent again
audit-pause-queue = Queue paused
audit-resume-queue = Queue resumed
audit-fail-task = Task failed and refunded
audit-unknown = Change by a newer version of this server

credits-use = Credits used per day
credits-days = { $n } days
credits-period = Period of the chart
credits-kind = Kind
credits-all = All kinds
credits-from = From
credits-until = Until
credits-filter = Filter

key-submit-rate = Submits a minute
key-read-rate = Reads a minute
key-default = as the server
key-rate-too-high = Limits of a key cannot be above those of this server, and 0 means none. Enter a lower number, or leave the field empty. Only the operator raises limits.
key-budget-raised = You can only lower a budget. Ask the operator of this server to raise or remove it.
key-account-budget = The operator of this server has set a budget for a key of this account. You cannot create other keys: rotate that one, or ask the operator.
key-account-struck = Too many keys of this account are suspended for violations of the content policy. You cannot create, rotate or enable keys until the operator of this server lifts that.
key-rate-invalid = A limit is a whole number of calls a minute; 0 means none.
key-name-invalid = A label has at most 100 characters, without line breaks.
key-limits = Limits
key-unlimited = unlimited
key-too-many = This account has as many keys as it may have. Revoke those that are not needed.
key-overlap = The old key works
key-hours = { $n ->
    [0] no longer
    [one] 1 hour more
   *[other] { $n } hours more
}
key-expires = expires { $word }

password-title = Password
password-lead = A new password signs you out everywhere else. It has at least 12 characters.
password-current = Current password
password-new = New password
password-set = Set the password
password-done = The password is set, and you are signed out everywhere else.
password-wrong = The current password is another one.
password-short = A password has at least 12 characters.
password-common = This password is too easy to guess. Choose several words that do not belong together.
password-name = A password must not contain your name, the name of your account or of this service.

title-gallery = Gallery
search-example = Words of a prompt
filters = Filters
filters-none = Show all
any = Any
kind-text = From words alone
kind-image = With references
gallery-completed = Completed
gallery-processing = Under way
gallery-all = All
gallery-new = There is no picture yet.
gallery-begin = Create the first one
gallery-empty = No picture fits. Change the words or the filters.
gallery-on = None of the latest pictures fits. Older ones may.
gallery-keys = Keys: arrows move, Enter opens, space chooses (with Shift a range), Ctrl+A chooses all, s stars, Delete deletes, / searches, Esc clears.
star = Star
unstar = Take star away
starred = Starred
delete = Delete
undo = Undo
zip-busy = This account downloads several files at this moment. Try again when one is complete.
undo-late = Some tasks are erased and cannot be restored.
deleted = { $n ->
    [one] 1 task moved to the bin.
   *[other] { $n } tasks moved to the bin.
}
choose = Choose
chosen = { $n } chosen
chosen-none = None chosen
chosen-do = For the chosen pictures
board = Board
boards = Boards
boards-change = Make or change boards
board-new = Name of the new board
board-create = Make board
board-rename = Rename board
board-remove = Remove board, keep pictures
board-remove-sure = The board is then gone for good. Its pictures stay.
board-put = Add to board
board-take = Take off board
board-name = The name of a board has 1 to 60 characters.
board-taken = Another board has this name.
board-not-possible = There are as many boards as there can be. Remove one you no longer need.
download-details = Download with prompt
download-details-too = with prompts
download-details-lead = The file also has the prompt and settings. Drop it on the prompt box to fill in the form again.
download-zip = Download ZIP
copy-as = Copy as
copy-as-lead = The same task for a program. It takes a key from the environment variable TINTYPE_KEY.
copy-as-own = References to your own pictures are left out: programs give references as https links.
copy = Copy
key-budget = Budget in credits
key-budget-none = none
key-budget-set = Set budget
key-budget-change = Change the budget
key-period = Period of the budget
key-per-day = per day
key-per-week = per week
key-per-month = per month
key-budget-spent = { $n } spent
key-budget-left = { $n } left
key-budget-resets = resets at { $word } UTC
key-budget-invalid = A budget is a whole number of credits above zero for a day, a week or a month; without a number there is none.
audit-change-budget = Budget of a key set
credits-expiry = Expiry
title-usage = Usage
usage-lead = Charges and refunds of this account, added up. A refund counts on the day on which it came.
usage-link = Usage by key, person and day
usage-by = Rows
usage-by-key = By key
usage-by-day = By day
usage-period = Period
usage-day = Day
usage-tasks = Tasks
usage-images = Images
usage-charged = Charged
usage-refunded = Refunded
usage-total = Total
usage-net = Net credits
usage-days = Days: { $word } (UTC)
usage-empty = Nothing was charged or refunded in this period.
usage-studio = Studio
usage-unknown-key = Unknown key
grants-title = Credits that expire
grants-expiry = Expires
grants-left = Left
grants-granted = Granted
grant-days = Expires after days
audit-low-balance = Threshold of low credits set

title-webhooks = Webhooks
webhooks-lead = The server tells these URLs when a task of a program has ended, credits run low, or a key is suspended. Each request is signed with the secret of its endpoint, as Standard Webhooks says.
webhooks-empty = There is no endpoint yet.
webhooks-care = Something could not be delivered for some time. Look at the endpoints that are marked.
webhooks-all = All webhooks
webhook-url = URL
webhook-events = Events
webhook-new = Add an endpoint
webhook-created = This is the secret of the new endpoint, which signs what it is sent. Copy it now: it is not shown again.
webhook-copy = Copy the secret
webhook-rotated = { $n ->
    [0] This is the new secret. Copy it now: it is not shown again. The old one no longer signs.
    [one] This is the new secret. Copy it now: it is not shown again. The old one signs, too, for one hour.
   *[other] This is the new secret. Copy it now: it is not shown again. The old one signs, too, for { $n } hours.
}
webhook-url-invalid = Write a URL that begins with https:// and has no user name, no spaces and no part after a number sign.
webhook-no-event = Choose at least one event.
webhook-too-many = This account has as many endpoints as it may have. Remove those that are not needed.
webhook-disabled = This endpoint is disabled. Enable it first.
webhook-of-operator = The operator of this server has added this endpoint, and alone can change it.
webhook-enable = Enable
webhook-disable = Disable
webhook-test = Send a test
webhook-overlap = The old secret signs
webhook-rotate = New secret
webhook-remove = Remove
webhook-remove-sure = Nothing more is sent to this URL, nor what still waits, and its secret and deliveries are gone for good.
webhook-subscribe = Change the events
webhook-deliveries = Deliveries
endpoint-active = active
endpoint-failing = failing since { $word } UTC; the server goes on trying
endpoint-gone = disabled, because its receiver answered 410 Gone
endpoint-dead = disabled, because nothing could be delivered since { $word } UTC
endpoint-disabled = disabled
deliveries-lead = Everything that was sent in the last week, newest first. Load the page again to see what has become of a test.
deliveries-empty = Nothing was sent yet.
delivery-event = Event and its id
delivery-attempts = Attempts
delivery-last = Last answer
delivery-next = Next attempt
delivery-replay = Send again
delivery-waiting = waiting
delivery-delivered = delivered
delivery-failed = given up
delivery-timeout = no answer in time
delivery-unreachable = no connection: check its name, port and certificate
delivery-address = its address is in no network that the server may reach

title-factor = Second factor
factor-lead = An authenticator app on your phone shows a new code every 30 seconds. From then on, a sign-in with a password or a link also needs that code. Scan the picture with the app, or type the secret into it.
factor-picture = QR code for the authenticator app
factor-secret = Secret:
factor-uri-copy = Copy the link for an app
factor-on = Turn it on
factor-off = Turn it off
factor-is-on = A sign-in with a password or a link also needs a code of your authenticator app.
factor-codes-left = { $n ->
    [one] You have 1 recovery code left.
   *[other] You have { $n } recovery codes left.
}
factor-codes-new = Make new recovery codes
factor-codes-lead = These are your recovery codes. Each one stands in for the app once. Keep them in a safe place: they are not shown again, and older ones no longer work.
factor-codes-copy = Copy the codes
factor-code-wrong = The code is wrong, or a second factor is on already. Nothing was changed. Check the clock of your phone and try the next code.
factor-wrong = The password or the code is wrong, or the code was used already. Nothing was changed.
factor-late = This page was open for too long. Here is a new secret.
factor-required = The operator of this server requires a second factor. Set it up to go on.
factor-open = Set it up
factor-manage = Manage
factor-none = You sign in without a second factor.
factor-short = second factor
factor-reset = Reset the second factor
factor-reset-sure = This person signs in without a code then, and is signed out everywhere. Make sure that it is really this person who asks.
code = Code
code-lead = Type the code that your authenticator app shows now.
code-hint = App lost? Type one of your recovery codes, or ask the operator of this server to reset the second factor.
code-wrong = The code is wrong or was used already. Wait for the next one.
code-often = Too many wrong codes. Wait five minutes, and try again.
sign-in-late = This sign-in took too long or has ended. Begin again.
confirm-password = Your password
confirm-either = Your password or a code
confirm-code = A code of your app
confirm-wrong = The password or the code is wrong, or the code was used already. Nothing was changed. Go back and try again.
confirm-late = This cannot be undone, so you must have signed in within the last ten minutes. Sign out, sign in again, and go on then.
audit-add-factor = Second factor turned on
audit-remove-factor = Second factor turned off
audit-reset-factor = Second factor reset
audit-recovery-codes = New recovery codes made
title-bin = Bin
bin-lead = { $n ->
    [one] Deleted tasks stay here for one day. Then they are erased.
   *[other] Deleted tasks stay here for { $n } days. Then they are erased.
}
bin-empty = The bin is empty.
bin-restore = Restore
bin-restore-all = Restore all
bin-erase = Delete for good
bin-erase-sure = The chosen tasks and their images are erased within minutes. They cannot be restored.
bin-erase-all = Empty the bin
bin-erase-all-sure = All tasks in the bin and their images are erased within minutes. They cannot be restored.
delete-refused = Only owners can delete other people's pictures. Nothing was deleted.
created-by = Created by
everyone = Everyone
mine = Mine
usage-by-person = By person
usage-api = API
usage-former-person = Former member
audit-delete-task = Someone else's task deleted
bin-lead-hours = { $n ->
    [one] Deleted tasks stay here for one hour. Then they are erased.
   *[other] Deleted tasks stay here for { $n } hours. Then they are erased.
}

share = Share
share-lead = Anyone with the link can see this without signing in.
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
link-shows = Shows
link-ends = Works until
link-views = Views
link-open = Open
link-revoke = Revoke
link-revoke-sure = The link stops working at once.
shared-picture = A shared picture
shared-number = Picture { $n }
shared-empty = No pictures here yet.
shared-foot = Made with AI in Tintype.
shared-gone = This link doesn't work. It may have expired or been revoked. Ask whoever sent it for a new one.
audit-share = Shared link created
audit-unshare = Shared link revoked

board-private = Visible only to me
board-publish = Share with the team
board-gone = This board no longer exists. Choose another one.
board-mine = private
board-count = { $n ->
    [one] { $n } picture
   *[other] { $n } pictures
}
boards-empty = No boards yet. Put pictures on a board to find them together.
board-many = { $word } pictures
server-away = Can't reach the server. Reconnecting…
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
started = Started. The picture comes first in Create.
board-added = Added to the board.
board-taken-off = Taken off the board.
zip-none = None of the chosen tasks has a picture.
board-publish-sure = Everyone in the team can then see and change it.
board-private-other = A private board
