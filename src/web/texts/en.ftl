### The texts of the studio in English. Each name is used by a page in ../pages or by the handlers.

title-create = Create
title-activity = API activity
title-keys = Keys
title-credits = Credits
title-sessions = Sessions
title-docs = API reference
title-picture = Picture
skip = Skip to the content
menu = Pages of the studio
signed-in-as = Signed in as { $word }
sign-out = Sign out
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
sign-in-hint = No password? Ask the operator of this server for a sign-in link.
link-lead = This link signs you in as { $word }, once.
link-used = This link has been used already, or its time is over. Ask for another one.
signed-out = You are signed out.
to-sign-in = Go to the sign-in page

prompt = Describe a picture
prompt-example = A red fox in the snow at dawn, watercolour
shape = Shape
number = Images
make = Create
references = Reference images
references-hint = Public https links, one in each line. At most four references in all.
references-links = Links
reference = Reference image
reference-remove = Remove this reference
use-as-reference = Use as reference
upload = Upload, paste or drop pictures
upload-broken = The upload broke off. Try again.
upload-remove = Delete
upload-four = A task takes at most four references.
upload-too-large = This file has more than 20 MiB.
upload-too-many = This account has as many uploads as it may have. Delete some of them.
upload-busy = Too many uploads arrive at this moment. Try again.
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
close = Close
details = Details
created = Created
task-id = Task
request-id = Request id
state = State
kind = Type
back = Back
no-credits = This costs { $word } credits. Ask the operator of this server for more.
too-many = This account has too many unfinished tasks. Wait until some of them have ended.
overloaded = The queue is so long that this task would not end in time. Try again in { $n } s.
unknown-outcome = It is not known whether the task was accepted. Look at your latest pictures before you try again.
viewer-refused = You may look at the pictures of this account. Ask its owner for the right to make some.
owner-refused = Only the owners of this account may do that.

activity-lead = Tasks that programs have created with the keys of this account. They are shown here and cannot be changed here.
activity-empty = No program has created a task yet.
activity-more = Show older tasks
prompt-column = Prompt
time = Time

keys-lead = Programs send a key with every call. A key acts for this account and spends its credits.
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
key-rotate = Rotate
key-rotated = This is the new key. The old one works for 24 hours more. Copy the new one now: it is not shown again.
key-leaked = This key was sent in a URL, so others may have read it. Rotate it, and give the new one to your program.
key-suspended = This key is suspended for violations of the content policy. Ask the operator of this server.
key-active = active
key-disabled = disabled
key-expired = expired
key-revoked = revoked
key-suspended-state = suspended

credits-lead = An image costs 2 credits. They are charged when a task is accepted, and come back when it fails.
credits-left = Balance
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
