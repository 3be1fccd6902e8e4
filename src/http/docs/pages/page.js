// Fills in the address of this server.
for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
