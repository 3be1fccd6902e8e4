// An OpenID Connect provider without pages. It signs in whoever the file of its argument names, and nobody if that is "nobody".
import { Provider } from 'oidc-provider';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';

const person = () => readFileSync(process.argv[2], 'utf8').trim();
// Claims in a file beside that one take the place of others.
const told = () => {
  const file = process.argv[2].replace(/person$/, 'claims');
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {};
};
// A strict one keeps claims out of the ID token, as the specification says, and signs them at the other endpoint.
const strict = process.argv[3] === 'strict';
const client = {
  ...(strict && { userinfo_signed_response_alg: 'RS256' }),
  client_id: 'tintype',
  client_secret: 'a secret of tintype at its provider',
  // A native client may listen on any port of this machine.
  application_type: 'native',
  redirect_uris: ['http://127.0.0.1/studio/oidc/callback', 'https://images.example.com/studio/oidc/callback'],
  post_logout_redirect_uris: ['https://images.example.com/studio/sign-in'],
  response_types: ['code'],
  grant_types: ['authorization_code'],
};

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [client],
    pkce: { required: () => true },
    claims: { openid: ['sub', 'groups'], profile: ['preferred_username', 'updated_at', 'zoneinfo', 'address'], email: ['email', 'email_verified'] },
    conformIdTokenClaims: strict,
    features: { devInteractions: { enabled: false }, jwtUserinfo: { enabled: strict } },
    interactions: { url: (_, { uid }) => `/interaction/${uid}` },
    cookies: { keys: ['a key of a test'] },
    findAccount: (_, sub) => ({
      accountId: sub,
      claims: () => ({
        sub,
        preferred_username: sub.split('#')[0],
        email: `${sub}@example.com`,
        // Types that providers of the field use, and the specification does not.
        email_verified: 'true',
        updated_at: '2023-01-01T00:00:00.000Z',
        zoneinfo: 5,
        address: 'One Road',
        ...told(),
      }),
    }),
    async loadExistingGrant({ oidc }) {
      const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope('openid profile email');
      await grant.save();
      return grant;
    },
  });
  const answer = provider.callback();
  server.on('request', async (request, response) => {
    // A strict one takes the secret of this client in the header alone, as Authelia, Canaille and Keycloak may, and what
    // stands before it says no in its own words (H2CK/oidc#545).
    if (strict && request.url === '/token' && !request.headers.authorization) {
      response.writeHead(401, { 'content-type': 'text/html' });
      return response.end('<h1>401 Unauthorized</h1>');
    }
    // A strict one moves its discovery document as Nextcloud does.
    const moved = strict && request.url.endsWith('/.well-known/openid-configuration');
    if (moved && !request.url.startsWith('/index.php/')) {
      response.writeHead(301, { location: `/index.php${request.url}` });
      return response.end();
    }
    if (moved) request.url = request.url.slice('/index.php'.length);
    if (!request.url.startsWith('/interaction/')) return answer(request, response);
    const { prompt } = await provider.interactionDetails(request, response);
    const refused = person() === 'nobody' && { error: 'access_denied' };
    // It asks once more for the consent to a native client.
    const agreed = prompt.name === 'consent' ? { consent: {} } : { login: { accountId: person() } };
    return provider.interactionFinished(request, response, refused || agreed, { mergeWithLastSubmission: true });
  });
  console.log(issuer);
});
