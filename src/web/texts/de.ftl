### Die Texte des Studios auf Deutsch.

title-create = Erstellen
title-activity = API-Aufträge
title-keys = Schlüssel
title-credits = Guthaben
title-sessions = Sitzungen
title-docs = API-Referenz

docs-lead = Erzeugen Sie Bilder aus eigenen Programmen. Aufträge der API und des Studios verbrauchen dasselbe Guthaben und sehen einander nicht.
docs-base = Adresse
docs-key = Schlüssel, in einer Kopfzeile
docs-openai = Für Programme, die OpenAIs Images API sprechen
docs-more = Im Browser ausprobieren, und für Generatoren von Clients
docs-example = Ein Beispiel
docs-inputs = Feld
docs-place = Ort
docs-meaning = Bedeutung
docs-required = erforderlich
docs-status = Status

title-picture = Bild
skip = Zum Inhalt springen
menu = Seiten des Studios
signed-in-as = Angemeldet als { $word }
sign-out = Abmelden
credits = { $n ->
    [one] 1 Credit
   *[other] { $n } Credits
}
images = { $n ->
    [one] 1 Bild
   *[other] { $n } Bilder
}

sign-in = Anmelden
sign-in-lead = Bilder aus Worten.
name = Name oder E-Mail
password = Passwort
sign-in-failed = Name und Passwort gehören nicht zusammen. Groß- und Kleinschreibung des Passworts zählt.
sign-in-often = Mit diesem Namen gab es zu viele Anmeldeversuche. Warten Sie eine Minute und versuchen Sie es noch einmal, oder bitten Sie um einen Anmeldelink.
sign-in-hint = Kein Passwort? Bitten Sie den Betreiber dieses Servers um einen Anmeldelink.
sign-up = Konto anlegen
sign-up-lead = Wählen Sie einen Namen und ein Passwort. Credits vergibt der Betreiber dieses Servers.
sign-up-credits = { $n ->
    [one] Zum Anfang bekommen Sie 1 Credit.
   *[other] Zum Anfang bekommen Sie { $n } Credits.
}
sign-up-password = Mindestens 12 Zeichen.
sign-up-known = Stattdessen anmelden
sign-up-invalid = Ein Name hat 1 bis 100 Zeichen.
sign-up-taken = Dieser Name kann nicht verwendet werden. Wählen Sie einen anderen.
sign-up-often = Aus Ihrem Netz wurden heute zu viele Konten angelegt. Versuchen Sie es morgen noch einmal, oder bitten Sie den Betreiber dieses Servers um ein Konto.
to-sign-up = Konto anlegen
oidc-sign-in = Mit { $word } anmelden
oidc-title = Anmeldung über Ihre Organisation
oidc-found = Sie sind als { $word } zurückgekommen.
oidc-confirm = Wenn Sie das sind, verknüpfen Sie es. Eine Anmeldung bei { $word } meldet Sie dann auch hier an.
oidc-link = Verknüpfen
oidc-leave = Nichts ändern
oidc-linked = Sie können sich mit { $word } anmelden.
oidc-unlinked = Verknüpfen Sie Ihre Identität bei { $word }, um sich mit ihr anzumelden.
oidc-unlink = Entfernen
oidc-unusable = Die Anmeldung Ihrer Organisation antwortet nicht. Versuchen Sie es später noch einmal, oder melden Sie sich auf andere Art an.
oidc-failed = Die Anmeldung Ihrer Organisation ließ sich nicht bestätigen. Versuchen Sie es noch einmal; wenn es wieder misslingt, sagen Sie es dem Betreiber dieses Servers.
oidc-refused = Ihre Organisation hat Sie nicht angemeldet. Versuchen Sie es noch einmal.
oidc-lost = Diese Anmeldung hat in einem anderen Browser begonnen, zu lange gedauert, oder ist schon beendet. Beginnen Sie noch einmal.
oidc-unknown = Niemand hat diese Identität hier verknüpft. Melden Sie sich auf andere Art an und verknüpfen Sie sie auf der Seite Ihrer Sitzungen, oder bitten Sie den Betreiber dieses Servers um ein Konto.
oidc-disabled = Dieses Konto ist gesperrt. Fragen Sie den Betreiber dieses Servers.
oidc-taken = Diese Identität ist hier mit einer anderen Person verknüpft, oder Sie haben eine andere verknüpft.
oidc-only = Sie melden sich nur mit dieser Identität an. Setzen Sie ein Passwort, bevor Sie sie entfernen.
link-lead = Dieser Link meldet Sie einmal als { $word } an.
link-used = Dieser Link wurde schon benutzt oder ist abgelaufen. Bitten Sie um einen neuen.
signed-out = Sie sind abgemeldet.
to-sign-in = Zur Anmeldung

prompt = Beschreiben Sie ein Bild
prompt-example = Ein roter Fuchs im Schnee bei Sonnenaufgang, Aquarell
shape = Format
number = Bilder
make = Erstellen
references = Vorlagen
references-hint = Öffentliche https-Links, einer in jeder Zeile. Insgesamt höchstens vier Vorlagen.
references-links = Links
reference = Vorlage
reference-remove = Diese Vorlage entfernen
use-as-reference = Als Vorlage verwenden
upload = Bilder hochladen, einfügen oder hierher ziehen
upload-broken = Das Hochladen brach ab. Versuchen Sie es noch einmal.
upload-remove = Löschen
upload-four = Ein Auftrag nimmt höchstens vier Vorlagen.
upload-too-large = Diese Datei hat mehr als 20 MiB.
upload-too-many = Dieses Konto hat so viele hochgeladene Bilder, wie es haben darf. Löschen Sie einige.
upload-busy = Im Moment kommen zu viele Bilder an. Versuchen Sie es noch einmal.
upload-no-credits = Dieses Konto hat zu wenige Credits für ein Bild. Bitten Sie den Betreiber dieses Servers um mehr.
upload-disk-full = Der Speicher dieses Servers ist fast voll, er nimmt keine Bilder an. Sagen Sie es dem Betreiber.
upload-not-a-picture = Diese Datei ist kein Bild im Format PNG, JPEG oder WebP, ist beschädigt oder hat zu viele Pixel.
no-reference = Die Vorlage { $n } gibt es nicht mehr. Entfernen Sie sie und versuchen Sie es noch einmal.
title-uploads = Ihre hochgeladenen Bilder
uploads-lead = Bilder, die Menschen dieses Kontos als Vorlagen gebracht haben. Sie werden nach einem Monat gelöscht; ein Konto darf { $n } haben.
uploads-empty = Noch ist nichts hochgeladen. Fügen Sie Bilder neben der Beschreibung hinzu.
refunded = { $n ->
    [one] Ein Credit kam zurück.
   *[other] { $n } Credits kamen zurück.
}
remix-all = Alles
remix-prompt = Nur die Beschreibung
remix-shape = Nur das Format
remix-references = Nur die Vorlagen
compare = Vergleichen
compare-first = Erstes Bild
compare-second = Zweites Bild
compare-over = Übereinander
compare-range = Anteil des ersten Bildes
compare-swap = Tauschen
compare-other = Ein anderes Bild wählen
compare-choose = Wählen Sie das Bild, mit dem Sie vergleichen.
empty-gallery = Hier ist noch nichts. Beschreiben Sie oben ein Bild, dann erscheint es hier.
your-pictures = Ihre neuesten Bilder
older = Ältere Bilder zeigen
waiting = Wartet
waiting-place = Wartet, Platz { $n } in der Schlange
working = Wird berechnet
working-steps = Wird berechnet, Schritt { $word }
left = noch etwa { $n } s
elapsed = { $n } s
failed = Fehlgeschlagen
cancel = Abbrechen
cancel-late = Die Berechnung hat begonnen, deshalb lässt sich dieser Auftrag nicht mehr abbrechen.
again = Noch einmal
remix = Abwandeln
download = Herunterladen
copy-link = Link kopieren
copied = Kopiert
unanswered = Der Server hat nicht geantwortet. Laden Sie die Seite neu, um zu sehen, was sich geändert hat, und versuchen Sie es noch einmal.
close = Schließen
details = Einzelheiten
created = Erstellt
task-id = Auftrag
request-id = Anfrage
state = Zustand
kind = Art
back = Zurück
no-credits = Das kostet { $word } Credits. Bitten Sie den Betreiber dieses Servers um mehr.
too-many = Dieses Konto hat zu viele unerledigte Aufträge. Warten Sie, bis einige fertig sind.
too-fast = Sie erteilen Aufträge zu schnell. Versuchen Sie es in { $n } s noch einmal.
suspended = Sie dürfen keine Bilder mehr erstellen, weil Ihre Aufträge gegen die Inhaltsrichtlinie verstießen. Nur der Betreiber dieses Servers kann das aufheben.
suspended-owner = Sie sind wegen Verstößen gegen die Inhaltsrichtlinie gesperrt. Bis der Betreiber dieses Servers das aufhebt, können Sie keine Personen hinzufügen, keine Rollen ändern, keine Anmeldelinks erzeugen und keine Schlüssel anlegen, tauschen oder freigeben.
overloaded = Die Schlange ist so lang, dass dieser Auftrag nicht rechtzeitig fertig würde. Versuchen Sie es in { $n } s noch einmal.
unknown-outcome = Es ist unbekannt, ob der Auftrag angenommen wurde. Sehen Sie Ihre neuesten Bilder an, bevor Sie es noch einmal versuchen.
viewer-refused = Sie dürfen die Bilder dieses Kontos ansehen. Bitten Sie den Inhaber um das Recht, welche zu erstellen.
owner-refused = Das dürfen nur die Inhaber dieses Kontos.

activity-lead = Aufträge, die Programme mit den Schlüsseln dieses Kontos erteilt haben. Sie werden hier gezeigt und lassen sich hier nicht ändern.
activity-empty = Noch hat kein Programm einen Auftrag erteilt.
activity-more = Ältere Aufträge zeigen
prompt-column = Beschreibung
time = Zeit (UTC)

keys-lead = Programme schicken mit jedem Aufruf einen Schlüssel. Er handelt für dieses Konto und verbraucht dessen Credits.
keys-empty = Es gibt noch keinen Schlüssel.
key-name = Bezeichnung
key-new = Schlüssel erstellen
key-expiry = Läuft ab nach
key-never = Nie
key-days = { $n } Tagen
key-created = Das ist der neue Schlüssel. Kopieren Sie ihn jetzt: Er wird nicht noch einmal gezeigt.
key-copy = Schlüssel kopieren
key-hint = Schlüssel
key-used = Zuletzt benutzt
key-unused = nie
key-disable = Sperren
key-enable = Entsperren
key-revoke = Widerrufen
key-rotate = Austauschen
key-rotated = { $n ->
    [0] Das ist der neue Schlüssel. Der alte gilt nicht mehr. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
    [one] Das ist der neue Schlüssel. Der alte gilt noch 1 Stunde. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
   *[other] Das ist der neue Schlüssel. Der alte gilt noch { $n } Stunden. Kopieren Sie den neuen jetzt: Er wird nicht wieder gezeigt.
}
key-leaked = Dieser Schlüssel stand in einer URL, andere können ihn gelesen haben. Tauschen Sie ihn aus und geben Sie den neuen Ihrem Programm.
key-suspended = Dieser Schlüssel ist wegen Verstößen gegen die Inhaltsregeln gesperrt. Wenden Sie sich an den Betreiber dieses Servers.
key-active = gültig
key-disabled = gesperrt
key-expired = abgelaufen
key-revoked = widerrufen
key-suspended-state = gesperrt

credits-lead = Ein Bild kostet 2 Credits. Sie werden bei der Annahme eines Auftrags abgebucht und kommen zurück, wenn er fehlschlägt.
credits-left = Stand
credits-amount = Betrag
credits-balance = Stand danach
credits-note = Bemerkung
credits-grant = Gutschrift
credits-charge = Abbuchung
credits-refund = Erstattung
credits-csv = Als CSV herunterladen
credits-empty = Es gibt noch keine Buchung.
credits-more = Ältere Buchungen zeigen

sessions-lead = In diesen Browsern sind Sie angemeldet.
session-this = Dieser Browser
session-end = Dort abmelden
sessions-end = Überall sonst abmelden
session-seen = Zuletzt benutzt
session-agent = Browser

error-title = Etwas ist schiefgegangen
error-not-found = Diese Seite gibt es nicht, oder sie gehört nicht Ihnen.
error-request = Das Formular war nicht lesbar. Gehen Sie zurück, laden Sie die Seite neu und versuchen Sie es noch einmal.
error-origin = Das Formular kam von einer anderen Seite. Öffnen Sie das Studio in diesem Browser und versuchen Sie es noch einmal.
error-https = Das Studio ist nur über HTTPS erreichbar.
error-internal = Bei uns ist etwas schiefgegangen. Es wurde nichts abgebucht. Bitte versuchen Sie es noch einmal.
error-rate = Zu viele Versuche. Warten Sie eine Minute und versuchen Sie es noch einmal.
error-id = Nennen Sie dem Betreiber diese Nummer:

search = Suchen
yes = ja
no = nein
account = Konto
tasks = Aufträge
seen = Letzte Meldung
ago = vor { $word }

chart-most = höchstens { $word }
chart-table = Als Tabelle
chart-value = Wert
chart-empty = Noch nichts zu zeigen.
chart-completed = Fertige Aufträge je Stunde
chart-failed = Gescheiterte Aufträge je Stunde
chart-waiting = Mittlere Wartezeit eines Auftrags, nach der Stunde seines Eingangs
chart-rendering = Mittlere Zeit vom Beginn der Arbeit bis zum Ende
chart-image = Mittlere Zeit vom Beginn der Arbeit bis zum Ende, je Bild

title-people = Personen
people-lead = Diese Personen melden sich bei diesem Konto an. Betrachter sehen, Mitglieder erstellen auch Bilder, Inhaber verwalten auch Schlüssel und Personen.
people-add = Person hinzufügen
people-link = Dieser Link meldet { $word } einmal an, innerhalb von 15 Minuten. Kopieren Sie ihn jetzt: Er wird nicht wieder gezeigt.
people-make-link = Anmeldelink
people-remove = Entfernen
people-self = Das sind Sie
people-empty = Niemand kann sich bei diesem Konto anmelden.
people-invalid = Ein Name hat 1 bis 100 Zeichen, ohne Zeilenumbruch.
people-taken = Dieser Name ist nicht möglich. Wählen Sie einen anderen.
people-full = Dieses Konto hat so viele Personen, wie es haben darf.
people-own = Sie können sich nicht selbst ändern oder entfernen. Bitten Sie einen anderen Inhaber.
people-suspended = Diese Person ist wegen Verstößen gegen die Inhaltsrichtlinie gesperrt. Nur der Betreiber dieses Servers kann sie entfernen.
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
queue-leased = In Arbeit
queue-oldest = Alter des ältesten
queue-pause = Warteschlange anhalten
queue-resume = Warteschlange fortsetzen
queue-paused = Die Warteschlange ist seit { $word } UTC angehalten: Aufträge werden angenommen und warten.
day-title = Die letzten 24 Stunden
day-completed = Fertig in 24 h
day-failed = Gescheitert in 24 h
reasons-title = Gründe des Scheiterns
reasons-empty = In den letzten 24 Stunden ist kein Auftrag gescheitert.
reason = Grund, wie ihn der Inhaber des Auftrags liest
reason-other = Andere Gründe
engines-title = Engines
engines-empty = Kein Worker hat eine Engine gemeldet.
engine = Engine
engine-workers = Worker
workers-title = Worker
worker = Worker
worker-slots = Gleichzeitig
worker-mean = Mittlere Zeit eines Auftrags
image-mean = Je Bild
worker-available = nimmt Aufträge an
worker-unavailable = seine Engine ist nicht erreichbar
worker-silent = stumm
account-search = Name enthält
accounts-empty = Kein Konto heißt so.
accounts-more = Weitere Konten zeigen
account-active = aktiv
account-disabled = gesperrt
account-deleted = gelöscht
account-admin = Verwalter
account-suspended-keys = { $n ->
    [one] 1 ausgesetzter Schlüssel
   *[other] { $n } ausgesetzte Schlüssel
}
account-disable = Konto sperren
account-disable-hint = Schlüssel und Personen sind ausgesperrt, bis es entsperrt wird. Unfertige Aufträge laufen weiter.
account-enable = Konto entsperren
account-own = Sie können das Konto, bei dem Sie angemeldet sind, nicht sperren.
account-ledger = Letzte Buchungen
account-deleted-refusal = Dieses Konto wurde gelöscht. Nichts wurde gutgeschrieben.
grant = Gutschreiben
grant-amount = Credits
grant-invalid = Nichts wurde gutgeschrieben. Geben Sie eine ganze Zahl über null an, eine Notiz von höchstens 500 Zeichen, und ganze Tage, wenn die Credits verfallen.
grant-repeated = Seit diese Seite gezeigt wurde, sind Credits gutgeschrieben worden, vielleicht durch dasselbe Formular. Nichts weiter wurde gutgeschrieben: Sehen Sie unten nach.
key-leaked-short = in einer URL gesehen
strikes = Verstöße
strikes-lead = Schlüssel und Personen, deren Aufträge gegen die Inhaltsrichtlinie verstießen. Erlassen löscht die Verstöße und hebt die Sperre auf. Ein von Hand gesperrter Schlüssel bleibt gesperrt.
strikes-empty = Kein Schlüssel hat einen Verstoß.
strikes-empty-people = Keine Person hat einen Verstoß.
strikes-lift = Verstöße erlassen

audit-lead = Änderungen an Konten, Credits, Schlüsseln, Personen, Warteschlange und Aufträgen, die neuesten zuerst. Zeiten in UTC.
audit-all = Alle Konten zeigen
audit-empty = Noch wurde nichts geändert.
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
audit-enable-key = Schlüssel freigegeben, Verstöße erlassen
audit-undisable-key = Schlüssel freigegeben
audit-lift = Verstöße erlassen
audit-suspend-person = Person gesperrt
audit-suspend-key = Schlüssel wegen Verstößen gesperrt
audit-disable-key = Schlüssel gesperrt
audit-revoke-key = Schlüssel widerrufen
audit-rotate-key = Schlüssel gewechselt
audit-sign-up = Konto im Studio angelegt
audit-add-person = Person hinzugefügt
audit-change-role = Rolle geändert
audit-set-password = Passwort gesetzt
audit-remove-person = Person entfernt
audit-make-link = Anmeldelink erstellt
audit-link-identity = Identität verknüpft
audit-unlink-identity = Identität entfernt
audit-add-endpoint = Webhook hinzugefügt
audit-enable-endpoint = Webhook eingeschaltet
audit-disable-endpoint = Webhook abgeschaltet
audit-rotate-endpoint = Neues Geheimnis eines Webhooks
audit-subscribe-endpoint = Ereignisse eines Webhooks geändert
audit-remove-endpoint = Webhook entfernt
audit-replay-delivery = Webhook noch einmal gesendet
audit-pause-queue = Warteschlange angehalten
audit-resume-queue = Warteschlange fortgesetzt
audit-fail-task = Auftrag abgebrochen und erstattet
audit-unknown = Änderung durch eine neuere Version dieses Servers

credits-use = Verbrauchte Credits je Tag
credits-days = { $n } Tage
credits-period = Zeitraum des Diagramms
credits-kind = Art
credits-all = Alle Arten
credits-from = Von
credits-until = Bis
credits-filter = Filtern

key-submit-rate = Aufträge je Minute
key-read-rate = Abfragen je Minute
key-default = wie der Server
key-rate-invalid = Eine Grenze ist eine ganze Zahl von Aufrufen je Minute; 0 heißt keine.
key-limits = Grenzen
key-unlimited = unbegrenzt
key-too-many = Dieses Konto hat so viele Schlüssel, wie es haben darf. Widerrufen Sie, was nicht gebraucht wird.
key-overlap = Der alte Schlüssel gilt
key-hours = { $n ->
    [0] nicht mehr
    [one] noch 1 Stunde
   *[other] noch { $n } Stunden
}
key-expires = endet { $word }

password-title = Passwort
password-lead = Ein neues Passwort meldet Sie überall sonst ab. Es hat mindestens 12 Zeichen.
password-current = Bisheriges Passwort
password-new = Neues Passwort
password-set = Passwort setzen
password-done = Das Passwort ist gesetzt, und Sie sind überall sonst abgemeldet.
password-wrong = Das bisherige Passwort ist ein anderes.
password-short = Ein Passwort hat mindestens 12 Zeichen.

title-gallery = Galerie
search-example = Wörter einer Beschreibung
filters = Filter
filters-none = Alles zeigen
any = Alle
kind-text = Nur aus Wörtern
kind-image = Mit Vorlagen
gallery-completed = Fertig
gallery-processing = In Arbeit
gallery-all = Alle
gallery-new = Es gibt noch kein Bild.
gallery-begin = Das erste erstellen
gallery-empty = Kein Bild passt. Ändern Sie die Wörter oder die Filter.
gallery-on = Von den neuesten Bildern passt keines. Vielleicht passen ältere.
gallery-keys = Tasten: Pfeile bewegen, Leertaste wählt, s setzt einen Stern, Entf löscht, Eingabe zeigt Einzelheiten, / sucht, Esc hebt die Wahl auf.
star = Stern
unstar = Stern wegnehmen
starred = Mit Stern
delete = Löschen
undo = Rückgängig
zip-busy = Dieses Konto lädt im Moment mehrere Dateien herunter. Versuchen Sie es noch einmal, wenn eine fertig ist.
undo-late = Einige Bilder sind endgültig fort: Löschen lässt sich zehn Minuten lang rückgängig machen.
deleted-some = Gelöscht.
deleted = { $n ->
    [one] 1 Auftrag gelöscht. Zehn Minuten lang lässt sich das rückgängig machen.
   *[other] { $n } Aufträge gelöscht. Zehn Minuten lang lässt sich das rückgängig machen.
}
choose = Auswählen
chosen = { $n } gewählt
chosen-none = Nichts gewählt
chosen-do = Für die gewählten Bilder
board = Sammlung
boards = Sammlungen
boards-change = Sammlungen anlegen oder ändern
board-new = Name der neuen Sammlung
board-create = Sammlung anlegen
board-rename = Sammlung umbenennen
board-remove = Sammlung auflösen, Bilder behalten
board-put = In die Sammlung
board-take = Aus der Sammlung
board-name = Der Name einer Sammlung hat 1 bis 60 Zeichen.
board-taken = Eine andere Sammlung heißt schon so.
board-not-possible = Dieses Konto hat so viele Sammlungen, wie es haben darf. Lösen Sie eine auf, die nicht gebraucht wird.
download-zip = ZIP herunterladen
copy-as = Kopieren als
copy-as-lead = Derselbe Auftrag für ein Programm. Es nimmt einen Schlüssel aus der Umgebungsvariablen TINTYPE_API_KEY.
copy-as-own = Vorlagen aus eigenen Bildern fehlen: Programme geben Vorlagen als https-Adressen an.
copy = Kopieren
key-budget = Budget in Credits
key-budget-none = keins
key-budget-set = Budget setzen
key-budget-change = Budget ändern
key-period = Zeitraum des Budgets
key-per-day = am Tag
key-per-week = in der Woche
key-per-month = im Monat
key-budget-spent = { $n } verbraucht
key-budget-left = { $n } übrig
key-budget-resets = neu ab { $word } UTC
key-budget-invalid = Ein Budget ist eine ganze Zahl von Credits über null für einen Tag, eine Woche oder einen Monat; ohne Zahl gibt es keins.
audit-change-budget = Budget eines Schlüssels gesetzt
credits-expiry = Verfall
title-usage = Verbrauch
usage-lead = Die Abbuchungen und Erstattungen dieses Kontos, zusammengezählt. Eine Erstattung zählt an dem Tag, an dem sie kam.
usage-link = Verbrauch nach Schlüssel und Tag
usage-by = Zeilen
usage-by-key = Nach Schlüssel
usage-by-day = Nach Tag
usage-period = Zeitraum
usage-day = Tag
usage-tasks = Aufträge
usage-images = Bilder
usage-charged = Abgebucht
usage-refunded = Erstattet
usage-total = Summe
usage-studio = Studio
usage-unknown-key = Unbekannter Schlüssel
grants-title = Credits, die verfallen
grants-expiry = Verfall (UTC)
grants-left = Übrig
grants-granted = Gutgeschrieben
grant-days = Verfall nach Tagen
audit-low-balance = Schwelle für wenig Guthaben gesetzt

title-webhooks = Webhooks
webhooks-lead = Der Server ruft diese URLs auf, wenn ein Auftrag eines Programms endet, das Guthaben knapp wird oder ein Schlüssel gesperrt wird. Jeder Aufruf ist mit dem Geheimnis seines Ziels signiert, nach Standard Webhooks.
webhooks-empty = Es wird noch keine URL aufgerufen.
webhooks-care = Etwas konnte seit einiger Zeit nicht zugestellt werden. Sehen Sie nach den markierten Zielen.
webhooks-all = Alle Webhooks
webhook-url = URL
webhook-events = Ereignisse
webhook-new = Ziel hinzufügen
webhook-created = Das ist das Geheimnis des neuen Ziels, das jeden Aufruf signiert. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt.
webhook-copy = Geheimnis kopieren
webhook-rotated = { $n ->
    [0] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert nicht mehr.
    [one] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert noch eine Stunde mit.
   *[other] Das ist das neue Geheimnis. Kopieren Sie es jetzt: Es wird nicht noch einmal gezeigt. Das alte signiert noch { $n } Stunden mit.
}
webhook-url-invalid = Schreiben Sie eine URL, die mit https:// beginnt und weder Benutzernamen noch Leerzeichen noch einen Teil nach einem Nummernzeichen hat.
webhook-no-event = Wählen Sie mindestens ein Ereignis.
webhook-too-many = Dieses Konto hat so viele Ziele, wie es haben darf. Entfernen Sie, was nicht gebraucht wird.
webhook-disabled = Dieses Ziel ist abgeschaltet. Schalten Sie es zuerst ein.
webhook-enable = Einschalten
webhook-disable = Abschalten
webhook-test = Probe senden
webhook-overlap = Das alte Geheimnis signiert noch
webhook-rotate = Neues Geheimnis
webhook-remove = Entfernen
webhook-subscribe = Ereignisse ändern
webhook-deliveries = Zustellungen
endpoint-active = eingeschaltet
endpoint-failing = seit { $word } UTC gestört; der Server versucht es weiter
endpoint-gone = abgeschaltet, weil der Empfänger 410 Gone geantwortet hat
endpoint-dead = abgeschaltet, weil seit { $word } UTC nichts zugestellt werden konnte
endpoint-disabled = abgeschaltet
deliveries-lead = Alles, was in der letzten Woche gesendet wurde, das Neueste zuerst. Die Zeiten sind in UTC. Laden Sie die Seite neu, um zu sehen, was aus einer Probe geworden ist.
deliveries-empty = Es wurde noch nichts gesendet.
delivery-event = Ereignis und seine Kennung
delivery-attempts = Versuche
delivery-last = Letzte Antwort
delivery-next = Nächster Versuch
delivery-replay = Noch einmal senden
delivery-waiting = wartet
delivery-delivered = zugestellt
delivery-failed = aufgegeben
delivery-timeout = keine Antwort in der Zeit
delivery-unreachable = keine Verbindung
delivery-address = die Adresse ist in keinem Netz, das der Server erreichen darf
