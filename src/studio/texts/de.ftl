### Die Texte des Studios auf Deutsch.

title-create = Erstellen
title-activity = API-Aufträge
title-keys = Schlüssel
title-credits = Guthaben
title-sessions = Sitzungen
title-security = Sicherheit
title-account = Konto
title-docs = API-Referenz

docs-lead = Erzeugen Sie Bilder aus eigenen Programmen. API und Studio teilen sich das Guthaben, zeigen ihre Bilder aber getrennt.
docs-base = Basis-URL
docs-key = API-Schlüssel (in einer Kopfzeile)
docs-openai = Für OpenAIs Images API
docs-mcp = Für Agenten (Model Context Protocol)
docs-more = API-Referenz und OpenAPI-Dokument
docs-example = Beispiel
docs-inputs = Feld
docs-place = Ort
docs-meaning = Bedeutung
docs-required = erforderlich
docs-status = Status

title-secret = Jetzt sichern
secret-lead = Diese Seite zeigt es, bis Sie auf „Fertig“ klicken, höchstens 10 Minuten lang.
secret-done = Fertig
secret-gone = Das wird nicht mehr gezeigt. Wenn Sie es nicht gesichert haben, erstellen Sie es neu.

title-picture = Bild
skip-pictures = Zu den Bildern springen
skip = Zum Inhalt springen
menu = Seiten des Studios
signed-in-as = Angemeldet als { $word }
sign-out = Abmelden
sign-out-here = Sie sind hier abgemeldet.
sign-out-there = Auch bei { $word } abmelden
credits = { $n ->
    [one] 1 Credit
   *[other] { $n } Credits
}
images = { $n ->
    [one] 1 Bild
   *[other] { $n } Bilder
}

sign-in = Anmelden
sign-in-lead = Aus Worten werden Bilder.
name = Name oder E-Mail
password = Passwort
sign-in-failed = Name oder Passwort ist falsch. Groß- und Kleinschreibung des Passworts zählt.
sign-in-often = Zu viele Anmeldeversuche mit diesem Namen. Warten Sie eine Minute und versuchen Sie es noch einmal, oder bitten Sie um einen Anmeldelink.
sign-in-hint = Kein Passwort? Bitten Sie den Betreiber dieses Servers um einen Anmeldelink.
sign-up = Konto anlegen
sign-up-lead = Wählen Sie einen Namen und ein Passwort. Credits vergibt der Betreiber dieses Servers.
sign-up-credits = { $n ->
    [one] Sie beginnen mit 1 Credit.
   *[other] Sie beginnen mit { $n } Credits.
}
sign-up-password = Mindestens 12 Zeichen.
sign-up-known = Stattdessen anmelden
sign-up-invalid = Ein Name hat 1 bis 100 Zeichen.
sign-up-taken = Dieser Name kann nicht verwendet werden. Wählen Sie einen anderen.
sign-up-often = Aus Ihrem Netz wurden heute zu viele Konten angelegt. Versuchen Sie es morgen noch einmal, oder bitten Sie den Betreiber dieses Servers um ein Konto.
to-sign-up = Konto anlegen
oidc-sign-in = Mit { $word } anmelden
oidc-title = Anmeldung über Ihre Organisation
oidc-found = Sie sind dort als { $word } angemeldet.
oidc-confirm = Wenn Sie das sind, verknüpfen Sie diese Identität. Eine Anmeldung bei { $word } meldet Sie dann auch hier an.
oidc-link = Verknüpfen
oidc-leave = Nicht verknüpfen
oidc-linked = Sie können sich mit { $word } anmelden.
oidc-unlinked = Verknüpfen Sie Ihre Identität bei { $word }, um sich mit ihr anzumelden.
oidc-unlink = Entfernen
oidc-unusable = Die Anmeldung Ihrer Organisation antwortet nicht. Versuchen Sie es später noch einmal, oder melden Sie sich auf andere Art an.
oidc-failed = Die Anmeldung Ihrer Organisation ließ sich nicht bestätigen. Versuchen Sie es noch einmal. Wenn es wieder misslingt, sagen Sie es dem Betreiber dieses Servers.
oidc-refused = Ihre Organisation hat Sie nicht angemeldet. Versuchen Sie es noch einmal.
oidc-lost = Diese Anmeldung hat in einem anderen Browser begonnen, zu lange gedauert oder ist schon beendet. Beginnen Sie noch einmal.
oidc-unknown = Diese Identität ist hier mit keinem Konto verknüpft. Melden Sie sich auf andere Art an und verknüpfen Sie sie auf der Seite „Sicherheit“, oder bitten Sie den Betreiber dieses Servers um ein Konto.
oidc-disabled = Dieses Konto ist gesperrt. Fragen Sie den Betreiber dieses Servers.
oidc-shut-out = Ihre Organisation gibt Ihnen keinen Zugang mehr zu diesem Konto. Fragen Sie Ihren Administrator.
oidc-taken = Diese Identität ist hier mit einer anderen Person verknüpft, oder Sie haben schon eine andere verknüpft.
oidc-only = Sie können sich nur mit dieser Identität anmelden. Setzen Sie ein Passwort, bevor Sie sie entfernen.
link-lead = Einmaliger Anmeldelink für { $word }
link-used = Dieser Link wurde schon benutzt oder ist abgelaufen. Bitten Sie um einen neuen.
signed-out = Sie sind abgemeldet.
session-ended = Ihre Sitzung ist beendet. Der letzte Schritt wurde nicht gespeichert.
to-sign-in = Zur Anmeldung

prompt = Beschreiben Sie ein Bild
prompt-example = Ein roter Fuchs im Schnee bei Sonnenaufgang, Aquarell
shape = Format
number = Bilder
make = Erstellen
preset = Voreinstellung
preset-default = Standard
no-preset = Die Voreinstellung { $word } gibt es nicht mehr. Wählen Sie eine andere.
settings = Einstellungen
settings-hint = Was leer bleibt, wählt die Voreinstellung.
setting-seed = Startwert
setting-negative_prompt = Weglassen
setting-steps = Schritte
setting-guidance_scale = Treue zur Beschreibung
setting-strength = Abweichung von der Vorlage
setting-not-taken = Diese Voreinstellung kennt die Einstellung „{ $word }“ nicht. Lassen Sie das Feld leer, oder wählen Sie eine andere Voreinstellung.
same-again = Mit diesem Startwert noch einmal
references = Vorlagen
references-hint = Öffentliche https-Links, einer pro Zeile. Insgesamt höchstens vier Vorlagen.
references-links = Links
reference = Vorlage
reference-remove = Diese Vorlage entfernen
use-as-reference = Als Vorlage verwenden
upload = Bilder hochladen, einfügen oder hierher ziehen
upload-broken = Das Hochladen wurde unterbrochen. Versuchen Sie es noch einmal.
form-filled = Das Formular hat jetzt die Angaben zu diesem Bild.
upload-remove = Löschen
upload-remove-sure = Das Bild wird endgültig gelöscht.
upload-mask = Maske
upload-refused = Nur Inhaber können hochgeladene Bilder anderer löschen.
upload-four = Höchstens vier Vorlagen sind möglich.
upload-too-large = Diese Datei ist größer als 20 MiB.
upload-too-many = Dieses Konto hat die Höchstzahl hochgeladener Bilder erreicht. Löschen Sie einige.
upload-busy = Im Moment werden zu viele Bilder hochgeladen. Versuchen Sie es noch einmal.
upload-too-many-rejected = Zu viele Dateien dieses Kontos wurden abgelehnt. Versuchen Sie es in ein paar Sekunden noch einmal.
upload-no-credits = Dieses Konto hat zu wenige Credits für ein Bild. Bitten Sie den Betreiber dieses Servers um mehr.
upload-disk-full = Der Speicher dieses Servers ist fast voll, deshalb nimmt er keine Bilder an. Sagen Sie es dem Betreiber.
upload-not-a-picture = Diese Datei lässt sich nicht lesen. Verwenden Sie ein Bild im Format PNG, JPEG oder WebP, das nicht beschädigt und nicht zu groß ist.
mask-title = Markieren Sie, was sich ändern soll
mask-lead = Nur der markierte Teil ändert sich. Der Rest des Bildes bleibt, wie er ist.
mask-paint = Markieren
mask-edit = Maske bearbeiten
mask-keys = Mit der Tastatur: Pfeiltasten bewegen den Pinsel, mit der Umschalttaste malen sie, die Leertaste malt einen Punkt.
mask-brush = Pinsel
mask-erase = Radieren
mask-done = Maske verwenden
mask-remove = Maske entfernen
mask-empty = Noch ist nichts markiert. Markieren Sie den Teil, der sich ändern soll.
mask-unfit = Die Maske gehört zu einem anderen Bild. Entfernen Sie sie, oder markieren Sie neu.
mask-gone = Die Maske wurde gelöscht. Markieren Sie neu, oder erstellen Sie das Bild ohne sie.
mask-not-taken = Diese Voreinstellung unterstützt keine Maske mit so vielen Vorlagen. Entfernen Sie die Maske oder einige Vorlagen, oder wählen Sie eine andere Voreinstellung.
references-not-taken = Diese Voreinstellung nimmt keine Vorlagen. Entfernen Sie sie, oder wählen Sie eine andere.
board-none = Keine
no-reference = Die Vorlage { $n } gibt es nicht mehr. Entfernen Sie sie und versuchen Sie es noch einmal.
title-uploads = Hochgeladene Bilder
uploads-lead = Bilder, die in diesem Konto als Vorlagen hochgeladen wurden. Sie werden nach 30 Tagen gelöscht. Ein Konto kann bis zu { $n } haben.
uploads-empty = Noch nichts hochgeladen. Fügen Sie Bilder neben der Beschreibung hinzu.
refunded = { $n ->
    [one] 1 Credit erstattet.
   *[other] { $n } Credits erstattet.
}
remix-all = Alles
remix-prompt = Nur die Beschreibung
remix-shape = Nur das Format
remix-references = Nur die Vorlagen
compare = Vergleichen
compare-first = Erstes Bild
compare-second = Zweites Bild
compare-over = Übereinander
compare-range = Position der Trennlinie
compare-swap = Tauschen
compare-other = Ein anderes Bild wählen
compare-choose = Wählen Sie das Bild, mit dem Sie vergleichen.
empty-gallery = Noch keine Bilder. Beschreiben Sie oben eines, dann erscheint es hier.
your-pictures = Ihre neuesten Bilder
older = Ältere Bilder zeigen
waiting = Wartet
waiting-place = Wartet, Platz { $n } in Ihrer Warteschlange
working = Wird berechnet
working-steps = Wird berechnet, Schritt { $word }
left = noch etwa { $n } s
elapsed = seit { $n } s
failed = Fehlgeschlagen
cancel = Abbrechen
cancelled = Abgebrochen
stop = Stoppen
stop-over-share = Ihr Team hat in den letzten 24 Stunden zu viele Bilder gestoppt, deshalb geht es mit diesem weiter. Lassen Sie es fertig werden, und löschen Sie es dann.
stop-refused = Nur Inhaber können Bilder anderer stoppen.
again = Noch einmal
remix = Abwandeln
download = Herunterladen
copy-link = Link kopieren
copy-address = URL des Bildes kopieren
copied = Kopiert
offline = Sie sind offline. Versuchen Sie es noch einmal, sobald Sie verbunden sind.
unanswered-make = Der Server hat nicht geantwortet. Versuchen Sie es noch einmal. Es wird nichts zweimal abgebucht.
unanswered = Der Server hat nicht geantwortet. Laden Sie die Seite neu, um zu sehen, was sich geändert hat, und versuchen Sie es noch einmal.
close = Schließen
more = Mehr
viewer-before = Vorheriges Bild
viewer-after = Nächstes Bild
picture-deleted = Dieses Bild wurde gerade gelöscht.
viewer-zoom = Originalgröße
copy-prompt = Beschreibung kopieren
picture-size = Bildgröße
board-find = Sammlung suchen
chosen-clear = Auswahl aufheben
zip-most = Zu viele für eine ZIP-Datei. Wählen Sie höchstens { $n }.
details = Details
created = Erstellt
picture-id = Kennung
task-id = Auftrag
request-id = Kennung der Anfrage
state = Zustand
kind = Art
back = Zurück
no-credits = Das kostet { $word } Credits, und das Konto hat zu wenige. Bitten Sie den Betreiber dieses Servers um mehr.
too-many = Dieses Konto hat zu viele unfertige Bilder. Warten Sie, bis einige fertig sind.
too-fast = Sie erstellen zu schnell Bilder. Versuchen Sie es in { $n } s noch einmal.
suspended = Sie sind gesperrt und können keine Bilder erstellen, weil einige Ihrer Beschreibungen gegen die Inhaltsrichtlinie verstießen. Nur der Betreiber dieses Servers kann das aufheben.
suspended-owner = Sie sind gesperrt, weil einige Ihrer Beschreibungen gegen die Inhaltsrichtlinie verstießen. Bis der Betreiber dieses Servers das aufhebt, können Sie keine Personen hinzufügen, keine Rollen ändern, keine Anmeldelinks erstellen und keine Schlüssel erstellen, austauschen oder aktivieren.
too-many-failed = Zu viele Bilder dieses Kontos sind fehlgeschlagen. Versuchen Sie es in { $n } s noch einmal.
overloaded = Die Warteschlange ist im Moment zu lang für ein weiteres Bild. Versuchen Sie es in { $n } s noch einmal.
unknown-outcome = Der Server konnte Ihre Anfrage nicht bestätigen. Sehen Sie sich Ihre neuesten Bilder an, bevor Sie es noch einmal versuchen.
viewer-refused = Sie können hier Bilder ansehen. Bitten Sie einen Inhaber dieses Kontos, wenn Sie auch welche erstellen möchten.
viewer-change-refused = Betrachter können nichts ändern. Fragen Sie einen Inhaber.
owner-refused = Das können nur Inhaber dieses Kontos.

failure-policy = Die Inhaltsrichtlinie erlaubt das nicht.
failure-references = { $n ->
    [0] Dieser Server nimmt keine Vorlagen an. Entfernen Sie sie.
    [one] Dieser Server nimmt eine Vorlage an. Entfernen Sie die anderen.
   *[other] Dieser Server nimmt höchstens { $n } Vorlagen an. Entfernen Sie die anderen.
}
failure-no-engine = Keine Engine dieses Servers kann solche Bilder erstellen. Wählen Sie eine andere Voreinstellung.
failure-engine = Die Bilder ließen sich nicht erstellen.
failure-lost = Die Bilder ließen sich auch nach mehreren Versuchen nicht erstellen.
failure-expired = Die Bilder wurden nicht innerhalb von 9 Minuten fertig.
failure-cancelled = Abgebrochen.
failure-operator = Vom Betreiber dieses Servers beendet.
failure-operator-said = Vom Betreiber dieses Servers beendet: { $word }
reference-unusable = Vorlage { $n } lässt sich nicht verwenden. Wählen Sie ein anderes Bild.
reference-address = Von der Adresse von Vorlage { $n } lädt dieser Server nichts herunter. Laden Sie das Bild stattdessen hoch.
reference-unreachable = Vorlage { $n } ließ sich nicht herunterladen. Prüfen Sie den Link, oder laden Sie das Bild hoch.
reference-too-large = Vorlage { $n } ist zu groß. Verwenden Sie ein kleineres Bild.
reference-not-an-image = Vorlage { $n } ist kein Bild im Format PNG, JPEG oder WebP.
reference-damaged = Vorlage { $n } ist beschädigt. Verwenden Sie ein anderes Bild.
reference-gone = Vorlage { $n } wurde gelöscht.
reference-mask-gone = Die Maske zu Vorlage { $n } wurde gelöscht.
reference-mask-size = Die Maske zu Vorlage { $n } hat eine andere Größe als das Bild.
prompt-empty = Beschreiben Sie zuerst das Bild.
prompt-character = Der Text enthält ein Zeichen, das sich nicht speichern lässt (U+0000). Entfernen Sie es.
prompt-long = Die Beschreibung ist zu lang. Erlaubt sind 32.000 Zeichen.
shape-unknown = Wählen Sie eines der Formate.
number-unknown = Wählen Sie 1 bis 4 Bilder.
link-scheme = Vorlage { $n } ist kein Link. Verwenden Sie einen, der mit https:// beginnt, oder laden Sie das Bild hoch.
link-long = Der Link von Vorlage { $n } ist zu lang. Erlaubt sind 4.096 Zeichen.
link-password = Der Link von Vorlage { $n } enthält einen Benutzernamen oder ein Passwort. Entfernen Sie das, oder laden Sie das Bild hoch.
link-port = Der Link von Vorlage { $n } nennt einen Port, den dieser Server nicht benutzt. Laden Sie das Bild stattdessen hoch.
link-private = Der Link von Vorlage { $n } führt nicht zu einer öffentlichen Adresse. Laden Sie das Bild stattdessen hoch.
link-malformed = Der Link von Vorlage { $n } ist ungültig. Kopieren Sie ihn noch einmal.
setting-whole = { $word }: Geben Sie eine ganze Zahl von { $least } bis { $most } ein.
setting-range = { $word }: Geben Sie eine Zahl von { $least } bis { $most } ein.
setting-long = { $word }: Geben Sie höchstens { $most } Zeichen ein.

activity-lead = Aufträge, die Programme mit den Schlüsseln dieses Kontos erteilt haben. Ihre Bilder lassen sich hier öffnen, aber nicht ändern.
activity-empty = Noch keine Aufträge über die API.
activity-more = Ältere Aufträge zeigen
prompt-column = Beschreibung
time = Zeit

keys-lead = Ihre Programme rufen mit diesen Schlüsseln die API auf und verbrauchen das Guthaben dieses Kontos. „Zuletzt benutzt“ wird bis zu einer Minute später aktualisiert.
keys-empty = Noch keine Schlüssel.
key-name = Bezeichnung
key-new = Schlüssel erstellen
key-expiry = Läuft ab nach
key-never = Nie
key-days = { $n } Tagen
key-created = Das ist der neue Schlüssel. Kopieren Sie ihn jetzt: Er wird nicht noch einmal gezeigt.
key-copy = Schlüssel kopieren
key-made-by = Erstellt von { $word }
key-made-by-former = Erstellt von einem ehemaligen Mitglied
key-hint = Schlüssel
key-used = Zuletzt benutzt
key-unused = Nie
key-disable = Deaktivieren
key-enable = Aktivieren
key-revoke = Widerrufen
key-revoke-sure = Programme mit diesem Schlüssel funktionieren dann nicht mehr. Das lässt sich nicht rückgängig machen.
key-rotate = Austauschen
key-rotated = { $n ->
    [0] Das ist der neue Schlüssel. Der alte gilt nicht mehr. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
    [one] Das ist der neue Schlüssel. Der alte gilt noch 1 Stunde. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
   *[other] Das ist der neue Schlüssel. Der alte gilt noch { $n } Stunden. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
}
key-leaked = Dieser Schlüssel stand in einer URL, andere können ihn gelesen haben. Tauschen Sie ihn aus und geben Sie Ihrem Programm den neuen.
key-suspended = Dieser Schlüssel ist gesperrt, weil Aufträge mit ihm gegen die Inhaltsrichtlinie verstießen. Wenden Sie sich an den Betreiber dieses Servers.
key-state-active = Aktiv
key-state-disabled = Deaktiviert
key-state-expired = Abgelaufen
key-state-revoked = Widerrufen
key-state-suspended = Gesperrt

credits-lead = Ein Bild kostet 2 Credits. Sie werden sofort abgebucht und erstattet, wenn es fehlschlägt.
credits-left = Stand
low-balance = Wenig Guthaben: Webhooks werden aufgerufen, wenn der Stand unter { $n } fällt.
low-balance-none = Wenig Guthaben: Es ist keine Schwelle gesetzt, deshalb wird kein Webhook aufgerufen. So setzen Sie eine:
whole-number = Eine ganze Zahl, nur Ziffern
credits-amount = Änderung
credits-balance = Stand
credits-note = Bemerkung
credits-grant = Gutschrift
credits-charge = Abbuchung
credits-refund = Erstattung
credits-csv = Als CSV herunterladen
credits-empty = Noch keine Buchungen.
credits-more = Ältere Buchungen zeigen

sessions-lead = Browser, in denen Sie angemeldet sind.
session-this = Dieser Browser
session-end = Sitzung beenden
sessions-end = Überall sonst abmelden
session-seen = Zuletzt benutzt
session-agent = Browser

error-title = Etwas ist schiefgegangen
error-not-found = Diese Seite gibt es nicht, oder sie gehört nicht Ihnen.
picture-in-bin = Dieses Bild liegt im Papierkorb.
error-request = Das Formular war nicht lesbar. Gehen Sie zurück, laden Sie die Seite neu und versuchen Sie es noch einmal.
error-origin = Das Formular kam von einer anderen Seite. Öffnen Sie das Studio in diesem Browser und versuchen Sie es noch einmal.
error-old-form = Sie haben sich seither neu angemeldet. Laden Sie die Seite neu, und senden Sie noch einmal.
error-https = Das Studio funktioniert nur über HTTPS.
error-internal = Bei uns ist etwas schiefgegangen. Es wurde nichts abgebucht. Versuchen Sie es noch einmal.
error-rate = Zu viele Versuche. Warten Sie eine Minute und versuchen Sie es noch einmal.
error-id = Nennen Sie dem Betreiber dieses Servers diese Kennung:

search = Suchen
yes = Ja
no = Nein
account = Konto
tasks = Aufträge
seen = Letzte Meldung
ago = vor { $word }

months = Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.
axis-day = { $n }. { $word }
chart-most = Höchstwert { $word }
chart-table = Als Tabelle
chart-value = Wert
chart-empty = Noch nichts zu zeigen.
chart-completed = Fertige Aufträge nach Stunde (UTC)
chart-failed = Fehlgeschlagene Aufträge nach Stunde (UTC)
chart-waiting = Mittlere Wartezeit, nach Stunde des Eingangs (UTC)
chart-rendering = Mittlere Rechenzeit je Auftrag, nach Stunde (UTC)
chart-image = Mittlere Rechenzeit je Bild, nach Stunde (UTC)

title-people = Personen
people-lead = Diese Personen können sich bei diesem Konto anmelden. Betrachter sehen Bilder, Mitglieder erstellen auch welche, Inhaber verwalten auch Schlüssel und Personen.
people-add = Person hinzufügen
people-link = Anmeldelink für { $word }, einmal und 15 Minuten lang gültig. Kopieren Sie ihn jetzt: Er wird nicht noch einmal gezeigt.
people-make-link = Anmeldelink
people-remove = Entfernen
people-remove-sure = Diese Person wird überall abgemeldet und kann sich nicht mehr anmelden. Schlüssel, die sie erstellt hat, gelten weiter. Widerrufen können Sie diese unter „Schlüssel“.
people-self = Das sind Sie
people-empty = Niemand kann sich bei diesem Konto anmelden.
people-invalid = Ein Name hat 1 bis 100 Zeichen, ohne Zeilenumbruch.
name-look-alike = Verwenden Sie in jedem Wort eines Namens nur Buchstaben eines Alphabets, und keine unsichtbaren Zeichen.
people-taken = Dieser Name kann nicht verwendet werden. Wählen Sie einen anderen.
people-full = Dieses Konto hat die Höchstzahl an Personen erreicht.
people-own = Sie können sich nicht selbst ändern oder entfernen. Bitten Sie einen anderen Inhaber.
people-suspended = Diese Person ist wegen Verstößen gegen die Inhaltsrichtlinie gesperrt. Nur der Betreiber dieses Servers kann sie entfernen.
invite-title = Mehrere Personen einladen
invite-lead = Mit einem Link können mehrere Personen diesem Konto beitreten. Jede wählt einen Namen und ein Passwort.
invite-places = Anzahl Personen
invite-make = Einladung erstellen
invite-link = { $n ->
    [one] Wer diesen Link hat, kann diesem Konto beitreten, insgesamt eine Person. Kopieren Sie ihn jetzt: Er wird nicht wieder gezeigt.
   *[other] Wer diesen Link hat, kann diesem Konto beitreten, insgesamt bis zu { $n } Personen. Kopieren Sie ihn jetzt: Er wird nicht wieder gezeigt.
}
invite-full = Dieses Konto hat die Höchstzahl offener Einladungen erreicht. Widerrufen Sie zuerst eine.
invite-open = Offene Einladungen
invite-left = Freie Plätze
invite-idle = Ruht: Diese Person ist gesperrt oder nicht mehr Inhaber.
invite-revoke-sure = Der Link gilt dann sofort nicht mehr. Wer schon beigetreten ist, bleibt.
join = Beitreten
join-to = { $word } beitreten
join-lead = Wählen Sie einen Namen und ein Passwort.
join-signed-in = Sie sind als { $word } angemeldet. Um unter einem anderen Namen beizutreten, melden Sie sich zuerst ab und öffnen Sie diesen Link dann noch einmal.
join-stay = Zum Studio
join-gone = Diese Einladung gilt nicht. Vielleicht ist sie abgelaufen oder widerrufen, oder alle Plätze sind vergeben. Bitten Sie um eine neue.
audit-invite = Einladung erstellt
audit-revoke-invitation = Einladung widerrufen
role = Rolle
role-of = Rolle von { $word }
role-change = Ändern
role-viewer = Betrachter
role-member = Mitglied
role-owner = Inhaber

title-operator = Betrieb
operator-overview = Übersicht
operator-accounts = Konten
operator-strikes = Verstöße
operator-audit = Protokoll
queue-waiting = Wartende Aufträge
queue-leased = Aufträge in Arbeit
queue-oldest = Alter des ältesten Auftrags
queue-pause = Warteschlange anhalten
queue-resume = Warteschlange fortsetzen
queue-paused = Die Warteschlange ist seit { $word } angehalten. Neue Aufträge werden angenommen, warten aber.
day-title = Die letzten 24 Stunden
day-completed = Aufträge fertig in 24 h
day-failed = Aufträge fehlgeschlagen in 24 h
reasons-title = Warum Aufträge fehlschlugen
reasons-empty = In den letzten 24 Stunden ist kein Auftrag fehlgeschlagen.
reason = Grund
reason-other = Andere Gründe
engines-title = Engines
engines-empty = Noch hat kein Worker eine Engine gemeldet.
engine = Engine
engine-workers = Worker
workers-title = Worker
worker = Worker
worker-slots = Gleichzeitig
worker-mean = Mittlere Zeit je Auftrag
image-mean = Mittlere Zeit je Bild
worker-available = Bereit
worker-unavailable = Engine nicht erreichbar
worker-silent = Meldet sich nicht
name-contains = Name enthält
people-of = Personen von { $word }.
people-all = Alle Personen dieses Kontos
people-none = Keine Person gefunden.
people-more = Weitere Personen zeigen
session-end-sure = Wer das Studio dort benutzt, muss sich neu anmelden.
strikes-lift-sure = Die Verstöße werden gelöscht und die Sperre endet. Das lässt sich nicht rückgängig machen.
key-enable-sure = Programme mit diesem Schlüssel funktionieren wieder. Seine Verstöße werden gelöscht.
key-disable-sure = Programme mit diesem Schlüssel funktionieren nicht mehr, bis Sie ihn aktivieren.
key-budget-sure = Sie können das Budget später senken. Erhöhen oder entfernen kann es nur der Betreiber dieses Servers.
grant-sure = { $word } kann die Credits sofort ausgeben. Zurücknehmen lassen sie sich nicht im Studio, nur auf der Befehlszeile.
accounts-empty = Kein Konto gefunden.
accounts-more = Weitere Konten zeigen
account-active = Aktiv
account-disabled = Gesperrt
account-deleted = Gelöscht
account-admin = Betreiber
account-suspended-keys = { $n ->
    [one] 1 gesperrter Schlüssel
   *[other] { $n } gesperrte Schlüssel
}
account-disable = Konto sperren
account-disable-hint = Schlüssel und Personen sind ausgesperrt, und Webhooks warten, bis es entsperrt wird. Unfertige Aufträge laufen weiter.
account-enable = Konto entsperren
account-own = Sie können Ihr eigenes Konto nicht sperren.
account-ledger = Letzte Buchungen
account-deleted-refusal = Dieses Konto wurde gelöscht. Nichts wurde gutgeschrieben.
grant = Gutschreiben
grant-amount = Credits
grant-invalid = Nichts wurde gutgeschrieben. Geben Sie eine ganze Zahl über null an, eine Bemerkung von höchstens 500 Zeichen, und mindestens 1 ganzen Tag, wenn die Credits verfallen.
grant-repeated = Seit diese Seite gezeigt wurde, sind Credits gutgeschrieben worden, vielleicht durch dasselbe Formular. Nichts weiter wurde gutgeschrieben: Sehen Sie unten nach.
key-leaked-short = In einer URL gesehen
strikes = Verstöße
strikes-lead = Schlüssel und Personen, deren Aufträge gegen die Inhaltsrichtlinie verstießen. Wenn Sie die Verstöße löschen, endet auch die Sperre. Ein deaktivierter Schlüssel bleibt deaktiviert.
strikes-empty = Kein Schlüssel hat einen Verstoß.
strikes-empty-people = Keine Person hat einen Verstoß.
strikes-lift = Verstöße löschen

audit-lead = Änderungen an Konten, Credits, Schlüsseln, Personen, Warteschlange und Aufträgen, die neuesten zuerst.
audit-all = Alle Konten zeigen
audit-empty = Noch keine Änderungen.
audit-actor = Von
audit-action = Änderung
audit-subject = Gegenstand
via-command = Befehlszeile
via-studio = Studio
via-server = Server
audit-create-account = Konto angelegt
audit-enable-account = Konto entsperrt
audit-disable-account = Konto gesperrt
audit-delete-account = Konto gelöscht
audit-grant = Credits gutgeschrieben
audit-take = Credits abgezogen
audit-create-key = Schlüssel angelegt
audit-enable-key = Schlüssel aktiviert, Verstöße gelöscht
audit-undisable-key = Schlüssel aktiviert
audit-lift = Verstöße gelöscht
audit-suspend-person = Person gesperrt
audit-suspend-key = Schlüssel gesperrt
audit-disable-key = Schlüssel deaktiviert
audit-revoke-key = Schlüssel widerrufen
audit-rotate-key = Schlüssel ausgetauscht
audit-sign-up = Konto im Studio angelegt
audit-add-person = Person hinzugefügt
audit-shut-out = Zugang von der Organisation beendet
audit-change-role = Rolle geändert
audit-set-password = Passwort gesetzt
audit-remove-person = Person entfernt
audit-make-link = Anmeldelink erstellt
audit-link-identity = Identität verknüpft
audit-unlink-identity = Identität entfernt
audit-add-endpoint = Webhook hinzugefügt
audit-enable-endpoint = Webhook eingeschaltet
audit-disable-endpoint = Webhook abgeschaltet
audit-rotate-endpoint = Geheimnis eines Webhooks ausgetauscht
audit-subscribe-endpoint = Ereignisse eines Webhooks geändert
audit-remove-endpoint = Webhook entfernt
audit-replay-delivery = Webhook noch einmal gesendet
audit-pause-queue = Warteschlange angehalten
audit-resume-queue = Warteschlange fortgesetzt
audit-fail-task = Auftrag beendet und erstattet
suspended-for = { $n ->
    [one] 1 Verstoß gegen die Inhaltsrichtlinie innerhalb von { $word }
   *[other] { $n } Verstöße gegen die Inhaltsrichtlinie innerhalb von { $word }
}
within-days = { $n ->
    [one] 1 Tag
   *[other] { $n } Tagen
}
within-hours = { $n ->
    [one] 1 Stunde
   *[other] { $n } Stunden
}
within-minutes = { $n ->
    [one] 1 Minute
   *[other] { $n } Minuten
}
within-seconds = { $n ->
    [one] 1 Sekunde
   *[other] { $n } Sekunden
}
audit-policy = Inhaltsrichtlinie
audit-by-invitation = durch Einladung
audit-places = { $n ->
    [one] 1 Platz
   *[other] { $n } Plätze
}
audit-until = bis { $word }
audit-gone = der Empfänger antwortete mit 410 Gone
audit-failing = zu lange ließ sich nichts zustellen
audit-unknown = Änderung durch eine neuere Version dieses Servers

credits-use = Verbrauchte Credits je Tag (UTC)
credits-days = { $n } Tage
credits-period = Zeitraum des Diagramms
credits-kind = Art
credits-all = Alle Arten
credits-opening = Anfangsguthaben
credits-from = Von
credits-until = Bis
credits-filter = Filtern

key-submit-rate = Aufrufe je Minute (erstellen)
key-read-rate = Aufrufe je Minute (lesen)
key-default = Standard des Servers
key-rate-too-high = Die Grenzen eines Schlüssels können nicht über denen dieses Servers liegen, und 0 heißt keine. Geben Sie eine kleinere Zahl ein, oder lassen Sie das Feld leer. Nur der Betreiber dieses Servers kann Grenzen erhöhen.
key-budget-raised = Sie können ein Budget nur senken. Bitten Sie den Betreiber dieses Servers, es zu erhöhen oder zu entfernen.
key-account-budget = Der Betreiber dieses Servers hat für einen Schlüssel dieses Kontos ein Budget gesetzt, deshalb können Sie keine weiteren erstellen. Tauschen Sie diesen aus, oder fragen Sie den Betreiber.
key-account-struck = Zu viele Schlüssel dieses Kontos sind wegen Verstößen gegen die Inhaltsrichtlinie gesperrt. Sie können keine Schlüssel erstellen, austauschen oder aktivieren, bis der Betreiber dieses Servers das aufhebt.
key-rate-invalid = Geben Sie eine Grenze als ganze Zahl von Aufrufen je Minute ein; 0 heißt keine.
key-name-invalid = Eine Bezeichnung hat höchstens 100 Zeichen, ohne Zeilenumbruch.
key-limits = Grenzen
key-unlimited = Unbegrenzt
key-too-many = Dieses Konto hat die Höchstzahl an Schlüsseln erreicht. Widerrufen Sie einige.
key-overlap = Der alte Schlüssel gilt
key-hours = { $n ->
    [0] nicht mehr
    [one] noch 1 Stunde
   *[other] noch { $n } Stunden
}
key-expires = läuft ab { $word }

password-title = Passwort
password-lead = Ein neues Passwort meldet Sie überall sonst ab. Verwenden Sie mindestens 12 Zeichen.
password-current = Bisheriges Passwort
password-new = Neues Passwort
password-set = Passwort setzen
password-done = Das Passwort ist gesetzt, und Sie sind überall sonst abgemeldet.
password-wrong = Das ist nicht Ihr bisheriges Passwort.
password-short = Verwenden Sie mindestens 12 Zeichen.
password-common = Dieses Passwort ist zu leicht zu erraten. Wählen Sie mehrere Wörter, die nicht zusammengehören.
password-name = Ein Passwort darf weder Ihren Namen noch den Ihres Kontos oder dieses Dienstes enthalten.

title-gallery = Galerie
search-example = Bilder suchen
filters = Filter
filters-none = Filter zurücksetzen
filters-on = Aktive Filter
filter-remove = Filter entfernen:
any = Alle
kind-text = Ohne Vorlagen
kind-image = Mit Vorlagen
gallery-completed = Fertig
gallery-processing = In Arbeit
gallery-all = Alle
gallery-new = Noch keine Bilder.
gallery-begin = Erstellen Sie Ihr erstes
board-create-for = Bilder dafür erstellen
board-empty = Diese Sammlung ist leer. Wählen Sie in der Galerie Bilder aus, und legen Sie sie in die Sammlung.
gallery-empty = Keine Bilder gefunden. Versuchen Sie andere Wörter, oder setzen Sie die Filter zurück.
gallery-on = Kein Treffer unter den neuesten Bildern. Vielleicht passen ältere.
gallery-keys = Tastenkürzel: Pfeiltasten bewegen, Eingabe öffnet, Leertaste wählt aus (mit Umschalt einen Bereich), 1 bis 4 wählen einzelne Bilder aus, Strg+A wählt alle aus, S setzt einen Stern, Entf löscht, / sucht, Esc hebt die Auswahl auf.
star = Stern
unstar = Stern entfernen
starred = Mit Stern
delete = Löschen
delete-pictures = { $n } Bilder löschen
undo = Rückgängig
zip-busy = Dieses Konto lädt gerade mehrere Dateien herunter. Versuchen Sie es noch einmal, wenn eine fertig ist.
undo-late = Einige Bilder wurden endgültig gelöscht und lassen sich nicht wiederherstellen.
deleted = { $n ->
    [one] In den Papierkorb verschoben.
   *[other] { $n } in den Papierkorb verschoben.
}
choose = Auswählen
choose-first = Wählen Sie zuerst Bilder aus.
chosen = { $n } ausgewählt
chosen-none = Nichts ausgewählt
chosen-do = Für die ausgewählten Bilder
chosen-alone = Der Download enthält nur diese Bilder. Alles andere gilt auch für die zusammen mit ihnen erstellten.
board = Sammlung
boards = Sammlungen
boards-change = Sammlungen verwalten
board-new = Neue Sammlung
board-create = Sammlung anlegen
board-rename = Sammlung umbenennen
board-remove = Sammlung auflösen, Bilder behalten
board-remove-sure = Die Sammlung wird endgültig aufgelöst. Ihre Bilder bleiben.
board-put = In die Sammlung
board-take = Aus der Sammlung
board-name = Geben Sie einen Namen mit 1 bis 60 Zeichen ein.
board-taken = Eine andere Sammlung heißt schon so.
board-not-possible = Sie haben die Höchstzahl an Sammlungen erreicht. Lösen Sie eine auf, die Sie nicht mehr brauchen.
download-details = Mit Beschreibung herunterladen
download-details-too = Beschreibungen in den Dateien
download-details-lead = Die Datei enthält auch Beschreibung und Einstellungen. Ziehen Sie sie auf das Textfeld, um das Formular wieder auszufüllen.
download-zip = ZIP herunterladen
copy-as = Als Code kopieren
copy-as-lead = Dieselbe Anfrage als Programm. Es liest den Schlüssel aus der Umgebungsvariablen TINTYPE_KEY.
copy-as-own = Vorlagen aus eigenen Bildern fehlen: Programme brauchen https-Links.
copy = Kopieren
key-budget = Budget in Credits
key-budget-none = Keins
key-budget-set = Budget setzen
key-budget-change = Budget ändern
key-period = Zeitraum des Budgets
key-per-day = am Tag
key-per-week = in der Woche
key-per-month = im Monat
key-budget-spent = { $n } verbraucht
key-budget-left = { $n } übrig
key-budget-resets = neu ab { $word }
key-budget-invalid = Geben Sie ein Budget als ganze Zahl von Credits über null am Tag, in der Woche oder im Monat ein, oder lassen Sie das Feld leer.
audit-change-budget = Budget eines Schlüssels gesetzt
credits-expiry = Verfall
credits-taken = Abgezogen
title-usage = Verbrauch
usage-lead = Abbuchungen und Erstattungen dieses Kontos. Ein Auftrag ist eine Anfrage und kann bis zu vier Bilder enthalten. Eine Erstattung zählt an dem Tag, an dem sie erfolgte.
usage-by = Gruppieren
usage-by-key = Nach Schlüssel
usage-by-day = Nach Tag
usage-period = Zeitraum
usage-day = Tag
usage-tasks = Aufträge
usage-images = Bilder
usage-charged = Abgebucht
usage-refunded = Erstattet
usage-total = Summe
usage-net = Credits netto
usage-days = Tage: { $word } (UTC)
usage-empty = In diesem Zeitraum gab es keine Abbuchungen oder Erstattungen.
usage-studio = Studio
usage-unknown-key = Unbekannter Schlüssel
grants-title = Credits, die verfallen
grants-expiry = Verfall
grants-left = Übrig
grants-granted = Gutgeschrieben
grant-days = Verfällt nach (Tagen)
audit-low-balance = Schwelle für wenig Guthaben gesetzt

title-webhooks = Webhooks
webhooks-lead = Der Server ruft diese URLs auf, wenn ein Auftrag der API endet, das Guthaben knapp wird oder ein Schlüssel gesperrt wird. Jeder Aufruf ist mit dem Geheimnis seines Ziels signiert (Standard Webhooks).
webhooks-empty = Noch keine Ziele.
webhooks-care = Einige Zustellungen schlagen seit einiger Zeit fehl. Prüfen Sie die markierten Ziele.
webhooks-all = Alle Webhooks
webhook-url = URL
webhook-events = Ereignisse
webhook-new = Ziel hinzufügen
webhook-created = Das ist das Geheimnis, das Aufrufe an das neue Ziel signiert. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt.
webhook-copy = Geheimnis kopieren
webhook-rotated = { $n ->
    [0] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert nicht mehr.
    [one] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert noch eine Stunde mit.
   *[other] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert noch { $n } Stunden mit.
}
webhook-url-invalid = Geben Sie eine URL ein, die mit https:// beginnt, ohne Benutzernamen, Leerzeichen oder einen Teil nach #.
webhook-plain-http = Dieser Server ruft URLs mit http:// nur in Netzen auf, mit denen er gestartet wurde (--webhook-network). Verwenden Sie https://.
webhook-out-of-reach = Dieser Server sendet an diese Adresse nur, wenn er mit ihrem Netz gestartet wird (--webhook-network).
webhook-no-event = Wählen Sie mindestens ein Ereignis.
webhook-too-many = Dieses Konto hat die Höchstzahl an Zielen erreicht. Entfernen Sie einige.
webhook-disabled = Dieses Ziel ist abgeschaltet. Schalten Sie es zuerst ein.
webhook-of-operator = Der Betreiber dieses Servers hat dieses Ziel hinzugefügt. Nur er kann es ändern.
webhook-enable = Einschalten
webhook-disable = Abschalten
webhook-test = Probe senden
webhook-overlap = Das alte Geheimnis gilt
webhook-rotate = Geheimnis austauschen
webhook-remove = Entfernen
webhook-remove-sure = An diese URL wird nichts mehr gesendet, auch nicht, was noch wartet. Geheimnis und Zustellungen werden endgültig gelöscht.
webhook-subscribe = Ereignisse ändern
webhook-deliveries = Zustellungen
endpoint-active = Aktiv
endpoint-failing = Gestört seit { $word }; weitere Versuche folgen
endpoint-gone = Abgeschaltet, weil der Empfänger 410 Gone geantwortet hat
endpoint-dead = Abgeschaltet, weil seit { $word } nichts zugestellt werden konnte
endpoint-disabled = Abgeschaltet
deliveries-lead = Zustellungen der letzten Woche, die neuesten zuerst. Laden Sie die Seite neu, um das Ergebnis einer Probe zu sehen.
deliveries-empty = Noch keine Zustellungen.
delivery-event = Ereignis und Kennung
delivery-attempts = Versuche
delivery-last = Letzte Antwort
delivery-next = Nächster Versuch
delivery-replay = Noch einmal senden
delivery-waiting = Wartet
delivery-delivered = Zugestellt
delivery-failed = Fehlgeschlagen
delivery-timeout = Keine Antwort in der erlaubten Zeit
delivery-unreachable = Keine Verbindung oder keine HTTP-Antwort: Name, Port und Zertifikat prüfen
delivery-address = Die Adresse liegt in einem Netz, das dieser Server nicht aufruft

title-factor = Zwei-Faktor-Anmeldung
factor-lead = Eine Authenticator-App auf Ihrem Telefon zeigt alle 30 Sekunden einen neuen Code. Eine Anmeldung mit Passwort oder Link braucht dann auch diesen Code. Scannen Sie den QR-Code mit der App, oder geben Sie dort das Geheimnis ein.
factor-picture = QR-Code für die Authenticator-App
factor-secret = Geheimnis:
factor-uri-copy = Einrichtungslink kopieren
factor-on = Einschalten
factor-off = Ausschalten
factor-is-on = Die Zwei-Faktor-Anmeldung ist eingeschaltet. Eine Anmeldung mit Passwort oder Link braucht auch einen Code Ihrer Authenticator-App.
factor-codes-left = { $n ->
    [one] Sie haben noch 1 Wiederherstellungscode.
   *[other] Sie haben noch { $n } Wiederherstellungscodes.
}
factor-codes-new = Neue Wiederherstellungscodes erstellen
factor-codes-lead = Das sind Ihre Wiederherstellungscodes. Jeder ersetzt die App einmal. Verwahren Sie sie sicher: Sie werden nicht noch einmal gezeigt, und ältere gelten nicht mehr.
factor-codes-copy = Codes kopieren
factor-code-wrong = Der Code ist falsch, oder die Zwei-Faktor-Anmeldung ist schon eingeschaltet. Es wurde nichts geändert. Prüfen Sie die Uhr Ihres Telefons und versuchen Sie es mit dem nächsten Code.
factor-wrong = Passwort oder Code sind falsch, oder der Code wurde schon benutzt. Es wurde nichts geändert.
factor-late = Diese Seite war zu lange offen. Hier ist ein neues Geheimnis.
factor-required = Der Betreiber dieses Servers verlangt die Zwei-Faktor-Anmeldung. Richten Sie sie ein, um fortzufahren.
factor-open = Einrichten
factor-manage = Verwalten
factor-none = Die Zwei-Faktor-Anmeldung ist ausgeschaltet.
factor-short = 2FA
factor-reset = 2FA zurücksetzen
factor-reset-sure = Diese Person kann sich dann ohne Code anmelden und wird überall abgemeldet. Vergewissern Sie sich, dass sie selbst darum bittet.
code = Code
code-lead = Geben Sie den Code ein, den Ihre Authenticator-App jetzt zeigt.
code-hint = App verloren? Geben Sie einen Ihrer Wiederherstellungscodes ein, oder bitten Sie den Betreiber dieses Servers, die Zwei-Faktor-Anmeldung zurückzusetzen.
code-wrong = Der Code ist falsch oder wurde schon benutzt. Warten Sie auf den nächsten.
code-often = Zu viele falsche Codes. Warten Sie fünf Minuten und versuchen Sie es noch einmal.
sign-in-late = Diese Anmeldung hat zu lange gedauert oder ist schon beendet. Beginnen Sie noch einmal.
confirm-password = Ihr Passwort
confirm-either = Ihr Passwort oder ein Code
confirm-code = Ein Code aus Ihrer App
confirm-wrong = Passwort oder Code sind falsch, oder der Code wurde schon benutzt. Es wurde nichts geändert. Gehen Sie zurück und versuchen Sie es noch einmal.
confirm-late = Dafür müssen Sie sich in den letzten zehn Minuten angemeldet haben. Melden Sie sich noch einmal so an wie zuvor, bei Ihrer Organisation oder mit einem neuen Anmeldelink, und wiederholen Sie es. Anmeldelinks erstellt der Betreiber dieses Servers: tintype person link.
audit-add-factor = Zwei-Faktor-Anmeldung eingeschaltet
audit-remove-factor = Zwei-Faktor-Anmeldung ausgeschaltet
audit-reset-factor = Zwei-Faktor-Anmeldung zurückgesetzt
audit-recovery-codes = Neue Wiederherstellungscodes erstellt
title-bin = Papierkorb
bin-lead = { $n ->
    [one] Gelöschte Bilder bleiben einen Tag hier. Danach werden sie endgültig gelöscht.
   *[other] Gelöschte Bilder bleiben { $n } Tage hier. Danach werden sie endgültig gelöscht.
}
bin-empty = Der Papierkorb ist leer.
bin-restore = Wiederherstellen
bin-restore-all = Alle wiederherstellen
bin-erase = Endgültig löschen
bin-erase-sure = Die ausgewählten Bilder werden in wenigen Minuten endgültig gelöscht. Sie lassen sich nicht wiederherstellen.
bin-erase-all = Papierkorb leeren
bin-erase-all-sure = Alle Bilder im Papierkorb werden in wenigen Minuten endgültig gelöscht. Sie lassen sich nicht wiederherstellen.
delete-refused = Nur Inhaber können Bilder anderer löschen. Es wurde nichts gelöscht.
created-by = Erstellt von
everyone = Alle
mine = Meine
usage-by-person = Nach Person
usage-api = API
usage-former-person = Ehemaliges Mitglied
audit-delete-task = Bild einer anderen Person gelöscht
audit-remove-upload = Hochgeladenes Bild einer anderen Person gelöscht
bin-lead-hours = { $n ->
    [one] Gelöschte Bilder bleiben eine Stunde hier. Danach werden sie endgültig gelöscht.
   *[other] Gelöschte Bilder bleiben { $n } Stunden hier. Danach werden sie endgültig gelöscht.
}

share = Teilen
share-lead = Wer den Link hat, sieht diese Sammlung ohne Anmeldung, auch was später dazukommt.
share-pictures = { $n ->
    [one] Wer den Link hat, sieht dieses Bild ohne Anmeldung.
   *[other] Wer den Link hat, sieht alle { $n } Bilder ohne Anmeldung.
}
share-for = Läuft ab
share-days = { $n ->
    [one] In { $n } Tag
   *[other] In { $n } Tagen
}
share-forever = Nie, bis zum Widerruf
share-prompts = Beschreibungen zeigen
share-make = Link erstellen
share-made = Der Link ist erstellt. Wer ihn hat, sieht, was Sie geteilt haben.
share-full = Dieses Konto hat die Höchstzahl geteilter Links erreicht. Widerrufen Sie zuerst einen.
title-links = Geteilte Links
links-empty = Noch keine geteilten Links. Öffnen Sie ein Bild oder eine Sammlung und wählen Sie Teilen.
link-shows = Inhalt
link-ends = Läuft ab
link-views = Aufrufe
link-open = Öffnen
link-revoke = Widerrufen
link-revoke-sure = Der Link gilt dann sofort nicht mehr.
shared-picture = Ein geteiltes Bild
shared-pictures = Geteilte Bilder
picture-number = Bild { $n }
shared-empty = Hier sind noch keine Bilder.
shared-foot = Mit KI erstellt, in Tintype.
shared-gone = Dieser Link gilt nicht mehr. Vielleicht ist er abgelaufen oder widerrufen. Bitten Sie um einen neuen.
audit-share = Geteilter Link erstellt
audit-unshare = Geteilter Link widerrufen

board-private = Nur für mich sichtbar
board-publish = Mit dem Team teilen
board-gone = Diese Sammlung gibt es nicht mehr. Wählen Sie eine andere.
board-unseen = Diese Sammlung gibt es nicht mehr, oder nur die Person sieht sie, die sie angelegt hat.
board-mine = privat
board-count = { $n ->
    [one] { $n } Bild
   *[other] { $n } Bilder
}
boards-empty = Noch keine Sammlungen. Legen Sie Bilder in eine Sammlung, um sie zusammen zu finden.
board-many = { $word } Bilder
server-away = Der Server ist nicht erreichbar. Neuer Versuch …
no-script = Ihr Browser führt keine Skripte aus, daher aktualisiert sich diese Seite nicht selbst.
no-script-reload = Neu laden
queue-is-paused = Die Warteschlange ist angehalten. Neue Bilder beginnen, sobald es weitergeht.
fresh = { $n } neue
notices = Bei fertigen Bildern benachrichtigen
shape-square = Quadrat
shape-story = Story
shape-wide = Breit
shape-poster = Plakat
shape-others = Weitere Formate
example-1 = Ein Leuchtturm auf einer Klippe in der Dämmerung, Öl auf Leinwand
example-2 = Rotfuchs im Neuschnee, Foto in weichem Morgenlicht
example-3 = Plakat für einen Jazzabend, klare Formen, drei Farben
example-4 = Isometrische Zeichnung eines kleinen Hafens mit Booten
choose-found = Alle { $n } gefundenen auswählen
choose-all = Alle auswählen
started = Begonnen. Das Bild erscheint unter Erstellen ganz vorn.
board-added = In die Sammlung gelegt.
board-taken-off = Aus der Sammlung genommen.
zip-none = Keines der ausgewählten Bilder ist fertig.
board-publish-sure = Das ganze Team kann sie dann sehen und ändern.
board-private-other = Eine private Sammlung
