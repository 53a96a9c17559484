/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What is there once for each family. Included twice, with V as 4 or 6, ADDRESS as the type of an address and
 * SAME(a, b) as the comparison of two.
 *
 *   frontends   address . port . protocol     where its slots are, how many, for whom
 *   slots       number                        an endpoint; written through a mapping, no system call
 *   members     frontend . endpoint           UDP, affinity: whoever remembers this endpoint may go on with it
 *   hits        number                        connections to the endpoint in the slot of this number
 *   counts      frontend . endpoint           connections that are in no slot any more; no program reads it
 *   peers       cookie of a socket            the one frontend of a connected socket, and its endpoint
 *   told        (in the socket)               UDP, unconnected: which endpoints stand for which frontends there
 *   affinity    client                        the endpoint that it has at a Service port, and when it came last
 *   sticky      frontend . endpoint           connections of such clients to endpoints whose slot is not known
 *
 * What is not in `frontends` is left as it is: the packet then meets nftables. So no map needs to be complete.
 */
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define N(name) CAT(name, V)

struct N(key) {
	ADDRESS address;
	__be16 port;
	__u8 protocol, zero;
};

struct N(endpoint) {
	ADDRESS address;
	__be16 port;
	__u16 zero;
};

struct N(pair) {
	struct N(key) frontend;
	struct N(endpoint) endpoint;
};

/* Which endpoint a client has; its `zero` is where in the pool it was. Its port is 0 where the rules know it. */
struct N(memory) {
	struct N(endpoint) endpoint;
#if V == 6
	__u32 zero;
#endif
	__u64 seen; /* in nanoseconds, by the clock of the last tick */
};

#if V == 4
INLINE void put_frontend4(word *pair, __be32 address, __be16 port, __u8 protocol)
{
	put(pair, address | (__u64)port << 32 | (__u64)protocol << 48);
}

INLINE void put_endpoint4(word *pair, const struct endpoint4 *from)
{
	put(pair + 1, from->address | (__u64)from->port << 32);
}

INLINE void put_no_endpoint4(word *pair)
{
	put(pair + 1, 0);
}

INLINE void put_memory4(word *memory, const word *pair, __u64 index, __u64 now)
{
	put(memory, pair ? pair[1] | index << 48 : 0);
	put(memory + 1, now);
}
#else
INLINE void put_frontend6(word *pair, struct address6 address, __be16 port, __u8 protocol)
{
	put(pair, address.word[0] | (__u64)address.word[1] << 32);
	put(pair + 1, address.word[2] | (__u64)address.word[3] << 32);
	put(pair + 2, port | (__u64)protocol << 16);
}

/* It begins in the middle of a word. */
INLINE void put_endpoint6(word *pair, const struct endpoint6 *from)
{
	put(pair + 2, (__u32)pair[2] | (__u64)from->address.word[0] << 32);
	put(pair + 3, from->address.word[1] | (__u64)from->address.word[2] << 32);
	put(pair + 4, from->address.word[3] | (__u64)from->port << 32);
}

INLINE void put_no_endpoint6(word *pair)
{
	put(pair + 3, 0);
	put(pair + 4, 0);
}

INLINE void put_memory6(word *memory, const word *pair, __u64 index, __u64 now)
{
	put(memory, pair ? pair[2] >> 32 | pair[3] << 32 : 0);
	put(memory + 1, pair ? pair[3] >> 32 | pair[4] << 32 : 0);
	put(memory + 2, pair ? pair[4] >> 32 | index << 16 : 0);
	put(memory + 3, now);
}
#endif

struct N(told_value) {
	struct N(pair) pairs[REMEMBERED];
};

/* The numbers of elements are the loader's to change. */
MAP(N(frontends), HASH, struct N(key), struct frontend, 16384, BPF_F_NO_PREALLOC);
MAP(N(slots), ARRAY, __u32, struct N(endpoint), 65536, BPF_F_MMAPABLE);
MAP(N(members), HASH, struct N(pair), __u32, 65536, BPF_F_NO_PREALLOC);
MAP(N(hits), ARRAY, __u32, __u64, 65536, BPF_F_MMAPABLE);
MAP(N(counts), HASH, struct N(pair), __u64, 65536, BPF_F_NO_PREALLOC);
MAP(N(peers), HASH, __u64, struct N(pair), 32768, BPF_F_NO_PREALLOC);
MAP(N(told), SK_STORAGE, __u32, struct N(told_value), 0, BPF_F_NO_PREALLOC);
MAP(N(affinity), LRU_HASH, struct client, struct N(memory), 1, 0);
MAP(N(sticky), HASH, struct N(pair), __u64, 1, BPF_F_NO_PREALLOC);

INLINE int N(same_endpoint)(const struct N(endpoint) *a, const struct N(endpoint) *b)
{
	return SAME(a->address, b->address) && a->port == b->port;
}

INLINE int N(same_key)(const struct N(key) *a, const struct N(key) *b)
{
	return SAME(a->address, b->address) && a->port == b->port && a->protocol == b->protocol;
}

/* Tell whether a socket of this very namespace would take what is sent to the endpoint: it may be the client itself,
 * and must see the node then, which nftables sees to. */
INLINE int N(own)(struct bpf_sock_addr *ctx, const struct N(endpoint) *endpoint, __u8 protocol)
{
	struct bpf_sock *sk;
#if V == 4 /* source and destination: addresses, then ports */
	word tuple[2];
	__u32 size = sizeof(((struct bpf_sock_tuple *)0)->ipv4);

	put(tuple, (__u64)endpoint->address << 32);
	put(tuple + 1, (__u64)endpoint->port << 16);
#else
	word tuple[5] = {};
	__u32 size = sizeof(((struct bpf_sock_tuple *)0)->ipv6);

	put(tuple + 2, endpoint->address.word[0] | (__u64)endpoint->address.word[1] << 32);
	put(tuple + 3, endpoint->address.word[2] | (__u64)endpoint->address.word[3] << 32);
	put(tuple + 4, (__u64)endpoint->port << 16);
#endif
	if (protocol == IPPROTO_TCP)
		sk = lookup_tcp(ctx, (void *)tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = lookup_udp(ctx, (void *)tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	release(sk);
	return 1;
}

INLINE void N(count)(__u64 slot)
{
	__u64 *counted = conf.counting ? map_lookup(&N(hits), &slot) : 0;

	if (counted)
		__sync_fetch_and_add(counted, 1);
}

/* A slot's number is one of four bytes: the lower half. */
INLINE int N(draw)(const struct frontend *frontend, word *pair, __u64 *slot)
{
	struct N(endpoint) *endpoint;
	__u64 *counted;

	if (frontend->slots == 0)
		return 0;
	put(slot, (__u32)(frontend->first + random32() % frontend->slots));
	counted = map_lookup(&N(hits), slot);
	if (counted) /* fetched along with the endpoint: to count waits for it, later */
		asm volatile("" ::"r"(*counted));
	endpoint = map_lookup(&N(slots), slot);
	if (!endpoint)
		return 0;
	N(put_endpoint)(pair, endpoint);
	return 1;
}

/* Remember in the socket for whom its peer stands. Each place is written by an offset that the verifier knows: else it
 * wants CAP_PERFMON. The mark keeps the compiler from making one piece of code with a computed offset of the four. */
#define MARK(at) asm volatile("/* place %0 */" ::"i"(at) : "memory")
#define TAKEN(at)                                                                                                  \
	if (told->pairs[at].frontend.protocol && N(same_endpoint)(&told->pairs[at].endpoint, &pair->endpoint) &&   \
	    !N(same_key)(&told->pairs[at].frontend, &pair->frontend))                                              \
		return 0;
#define SAME_PLACE(at)                                                                                             \
	if (N(same_key)(&told->pairs[at].frontend, &pair->frontend)) {                                             \
		MARK(at);                                                                                          \
		told->pairs[at].endpoint = pair->endpoint;                                                         \
		MARK(at);                                                                                          \
		return 1;                                                                                          \
	}
#define FREE_PLACE(at)                                                                                             \
	if (!told->pairs[at].frontend.protocol) {                                                                  \
		MARK(at);                                                                                          \
		told->pairs[at] = *pair;                                                                           \
		MARK(at);                                                                                          \
		return 1;                                                                                          \
	}
/* 0: there is no room, or the endpoint stands for another frontend here, and nobody could tell whose answers are. */
INLINE int N(tell)(struct N(told_value) *told, const struct N(pair) *pair)
{
	TAKEN(0) TAKEN(1) TAKEN(2) TAKEN(3)
	SAME_PLACE(0) SAME_PLACE(1) SAME_PLACE(2) SAME_PLACE(3)
	FREE_PLACE(0) FREE_PLACE(1) FREE_PLACE(2) FREE_PLACE(3)
	return 0;
}

/* Find what this socket was told for the frontend. */
#define KNOWN(at)                                                                                                  \
	if (N(same_key)(&told->pairs[at].frontend, (struct N(key) *)pair)) {                                       \
		MARK(at);                                                                                          \
		N(put_endpoint)(pair, &told->pairs[at].endpoint);                                                  \
		MARK(at);                                                                                          \
		return 1;                                                                                          \
	}
INLINE int N(recall)(struct N(told_value) *told, word *pair)
{
	KNOWN(0) KNOWN(1) KNOWN(2) KNOWN(3)
	return 0;
}

/* Remember what a socket that connects was given. What `peers` has no room for is kept in the socket, which takes twice
 * as long; but not of UDP, for nobody would find it. 0: nobody could tell for whom its peer stands. */
INLINE int N(note)(struct bpf_sock_addr *ctx, struct bpf_sock *sk, const struct N(pair) *pair)
{
	__u64 cookie = socket_cookie(ctx);
	struct N(told_value) *told;

	if (!map_update(&N(peers), &cookie, pair, BPF_ANY))
		return 1;
	if (pair->frontend.protocol == IPPROTO_UDP)
		return 0;
	told = sk_storage(&N(told), sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (told)
		told->pairs[0] = *pair; /* the others are empty: see forget */
	return told != 0;
}

/* Forget what a socket was told: from now on it speaks with somebody else. What `peers` has of TCP is written over, or
 * tells of an endpoint that is not its peer; to delete that would cost each connection that names no Service. */
INLINE void N(forget)(struct bpf_sock *sk)
{
	struct N(told_value) *told = sk_storage(&N(told), sk, 0, 0);

	if (told)
		__builtin_memset(told, 0, sizeof(*told));
}

/* Forget to whom a UDP socket was connected: it may be connected again, or to nobody, as often as it likes. */
INLINE void N(part)(struct bpf_sock_addr *ctx)
{
	__u64 cookie = socket_cookie(ctx);

	if (map_lookup(&N(peers), &cookie))
		map_delete(&N(peers), &cookie);
}

/* Find what is remembered of a client: the second half of the pair. `known`: what is there is the socket's already. */
INLINE int N(stay)(const struct frontend *frontend, const word *client, word *words, __u64 *slot, __u64 now, int known)
{
	struct N(memory) *memory = map_lookup(&N(affinity), client);
	struct N(endpoint) *endpoint;

	if (!memory)
		return NOTHING;
	if (now - memory->seen >= SECONDS_OF(frontend->head) * 1000000000)
		return OUTDATED;
	if (!memory->endpoint.port) {
		memory->seen = now;
		return BY_RULES;
	}
	if (known && N(same_endpoint)(&((struct N(pair) *)words)->endpoint, &memory->endpoint)) {
		memory->seen = now;
		return THE_SAME;
	}
	N(put_endpoint)(words, &memory->endpoint);
	if (memory->endpoint.zero < frontend->slots) {
		put(slot, (__u32)(frontend->first + memory->endpoint.zero));
		endpoint = map_lookup(&N(slots), slot);
		if (endpoint && N(same_endpoint)(endpoint, &memory->endpoint)) {
			memory->seen = now;
			return AT_SLOT;
		}
	}
	if (!map_lookup(&N(members), words))
		return GONE;
	memory->seen = now;
	return SOMEWHERE;
}

/* Remember what a client was given, or, without a pair, that the rules lead it. */
INLINE long N(remember)(const word *client, const word *pair, __u64 index, __u64 now, __u64 how)
{
	word memory[sizeof(struct N(memory)) / 8];

	N(put_memory)(memory, pair, index, now);
	return map_update(&N(affinity), client, memory, how);
}

/* Remember what was drawn for a client. Of sockets that come at once, what the first one was given counts. */
INLINE int N(agree)(const word *client, word *words, __u64 index, __u64 now, int had)
{
	struct N(memory) *memory;

	if (!N(remember)(client, words, index, now, had == NOTHING ? BPF_NOEXIST : BPF_ANY))
		return AT_SLOT;
	memory = map_lookup(&N(affinity), client);
	if (!memory || !memory->endpoint.port)
		return AT_SLOT;
	N(put_endpoint)(words, &memory->endpoint);
	return SOMEWHERE;
}

/* Count a connection of a client that is remembered. */
INLINE void N(count_sticky)(const word *pair)
{
	__u64 *counted;
	word one;

	if (!conf.counting)
		return;
	counted = map_lookup(&N(sticky), pair);
	if (!counted) {
		put(&one, 1);
		if (!map_update(&N(sticky), pair, &one, BPF_NOEXIST))
			return;
		counted = map_lookup(&N(sticky), pair);
	}
	if (counted)
		__sync_fetch_and_add(counted, 1);
}

/* Find what a socket that names a frontend is to speak with: the first half of the pair, and the second. 0: leave it
 * alone. */
INLINE int N(translate)(struct bpf_sock_addr *ctx, word *words, int connecting)
{
	struct N(pair) *pair = (void *)words;
	struct N(key) *key = &pair->frontend;
	struct N(told_value) *told = 0;
	struct bpf_sock *sk = ctx->sk;
	struct frontend *frontend;
	__u64 role, netns, slot = 0, now = 0, protocol = ctx->protocol;
	word client[sizeof(struct client) / 8];
	int known = 0, had = NOTHING, sticky;

	if (!sk)
		return 0;
	if (connecting)
		N(forget)(sk);
	if (conf.connected && protocol == IPPROTO_UDP && (connecting || !sk->dst_port))
		N(part)(ctx);
	frontend = map_lookup(&N(frontends), key);
	if (!frontend)
		return 0;
	/* A connected UDP socket asks nobody again when its endpoint goes: it is left to connection tracking, unless it will
	 * be ended then. With an IPv4 peer an IPv6 socket comes by sendmsg4 for each datagram, although it names nobody. */
	if (protocol == IPPROTO_UDP && (connecting ? !conf.connected || frontend->head & LOOSE : sk->dst_port))
		return 0;
	netns = netns_cookie(ctx);
	role = role_of(netns);
	if (!(frontend->head & role) || sk->bound_dev_if)
		return 0;
	if (role == NODE && frontend->head & AS_NODE && has_address(sk))
		return 0;
	sticky = conf.affinity && SECONDS_OF(frontend->head);
	/* Needed or not: before Linux 6.16 the verifier follows a condition both ways for a process without CAP_PERFMON,
	 * also where it knows the answer, and nothing may be read there that was not written. */
	put(client, netns);
	put(client + 1, PORT_OF(frontend->head));
	N(put_no_endpoint)(words);
	if (!connecting) {
		told = sk_storage(&N(told), sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!told)
			return 0; /* no memory: nobody could say from whom an answer comes */
		known = N(recall)(told, words) && map_lookup(&N(members), pair);
		if (known && !sticky)
			return 1;
	}
	if (sticky) {
		now = clock();
		had = N(stay)(frontend, client, words, &slot, now, known);
		if (known && had <= OUTDATED) { /* a socket that goes on; its client was away, or others took its place */
			N(remember)(client, words, NO_INDEX, now, BPF_ANY);
			return 1;
		}
		if (had == BY_RULES || had == THE_SAME)
			return had == THE_SAME;
	}
	if (had <= GONE) {
		if (!N(draw)(frontend, words, &slot))
			return 0;
		if (sticky)
			had = N(agree)(client, words, slot - frontend->first, now, had);
	}
	if ((role == POD && frontend->head & HAS_LOCAL && N(own)(ctx, &pair->endpoint, protocol)) ||
	    (told ? !N(tell)(told, pair) : !N(note)(ctx, sk, pair))) {
		if (sticky) /* so that its next socket meets the rules as well */
			N(remember)(client, 0, 0, now, BPF_ANY);
		return 0;
	}
	if (sticky && had == SOMEWHERE)
		N(count_sticky)(words);
	else
		N(count)(slot);
	return 1;
}

/* Find which frontend an endpoint stands for in this socket. 0: none, it is itself. */
#define STANDS_FOR(at)                                                                                             \
	if (told->pairs[at].frontend.protocol && N(same_endpoint)(&told->pairs[at].endpoint, from)) {              \
		MARK(at);                                                                                          \
		*key = told->pairs[at].frontend;                                                                   \
		MARK(at);                                                                                          \
		return 1;                                                                                          \
	}
INLINE int N(untranslate)(struct bpf_sock_addr *ctx, const struct N(endpoint) *from, struct N(key) *key)
{
	struct N(told_value) *told;
	struct N(pair) *peer;
	void *sk = ctx->sk;
	__u64 cookie;

	if (!sk)
		return 0;
	cookie = socket_cookie(ctx);
	peer = map_lookup(&N(peers), &cookie);
	if (peer && N(same_endpoint)(&peer->endpoint, from)) {
		*key = peer->frontend;
		return 1;
	}
	told = sk_storage(&N(told), sk, 0, 0);
	if (!told)
		return 0;
	STANDS_FOR(0) STANDS_FOR(1) STANDS_FOR(2) STANDS_FOR(3)
	return 0;
}

#undef MARK
#undef KNOWN
#undef SAME_PLACE
#undef FREE_PLACE
#undef TAKEN
#undef STANDS_FOR
#undef N
#undef CAT
#undef CAT_
