// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Connections to Services become connections to endpoints where a socket says whom it wants: connect(), sendto().
 *
 *   connect4/6      the address that a TCP socket names, once
 *   sendmsg4/6      that of a datagram from an unconnected UDP socket
 *   recvmsg4/6      from whom a datagram came: the Service again
 *   getpeername4/6  the same for who asks
 *   sock_release    forgets a socket that is closed
 *
 * An IPv6 socket that names an IPv4 address (::ffff:10.96.0.10) never meets the programs for IPv4 when it connects, but
 * does when it sends a datagram. Each program returns 1: it never forbids anything.
 */
#include "vipwire.h"

char licence[] SEC("license") = "Dual MIT/GPL";

const volatile struct settings conf SEC(".rodata") = {};

MAP(clients, HASH, __u64, __u32, 4096, BPF_F_NO_PREALLOC);

INLINE __u32 role_of(__u64 netns)
{
	if (netns == conf.node)
		return NODE;
	if (conf.listed)
		return map_lookup(&clients, &netns) ? POD : NOBODY;
	if (!conf.pods_cgroup || ancestor_cgroup(conf.pods_level) != conf.pods_cgroup)
		return NOBODY;
	return POD;
}

/* Tell whether a socket was given an address of its own. One of IPv6 has IPv4's in the last word. */
INLINE int has_address(const struct bpf_sock *sk)
{
	if (sk->family == 2 /* AF_INET */)
		return sk->src_ip4 != 0;
	return (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]) != 0;
}

#define V 4
#define ADDRESS __be32
#define SAME(a, b) ((a) == (b))
#include "family.h"
#undef V
#undef ADDRESS
#undef SAME

struct address6 {
	__be32 word[4];
};
#define V 6
#define ADDRESS struct address6
#define SAME(a, b)                                                                                                 \
	((a).word[0] == (b).word[0] && (a).word[1] == (b).word[1] && (a).word[2] == (b).word[2] &&                 \
	 (a).word[3] == (b).word[3])
#include "family.h"
#undef V

#define barrier() asm volatile("" ::: "memory")

/* The verifier wants the port read as four bytes. */
INLINE __be16 port_of(struct bpf_sock_addr *ctx)
{
	__u32 port = ctx->user_port;

	asm volatile("" : "+r"(port));
	return (__be16)port;
}

INLINE int wanted(__u32 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

INLINE struct address6 address6_of(struct bpf_sock_addr *ctx)
{
	struct address6 address;

	address.word[0] = ctx->user_ip6[0];
	barrier();
	address.word[1] = ctx->user_ip6[1];
	barrier();
	address.word[2] = ctx->user_ip6[2];
	barrier();
	address.word[3] = ctx->user_ip6[3];
	barrier();
	return address;
}

INLINE void set6(struct bpf_sock_addr *ctx, const struct address6 *address, __be16 port)
{
	ctx->user_ip6[0] = address->word[0];
	barrier();
	ctx->user_ip6[1] = address->word[1];
	barrier();
	ctx->user_ip6[2] = address->word[2];
	barrier();
	ctx->user_ip6[3] = address->word[3];
	barrier();
	ctx->user_port = port;
}

INLINE int is_mapped(const struct address6 *address)
{
	return !address->word[0] && !address->word[1] && address->word[2] == __builtin_bswap32(0xffff);
}

/* Endpoints are read from pairs, frontends are told of them. */
#define TO(v, words) ((const struct pair##v *)(words))->endpoint

INLINE void forth4(struct bpf_sock_addr *ctx, int connecting)
{
	word pair[sizeof(struct pair4) / 8];

	if (!wanted(ctx->protocol))
		return;
	put_frontend4(pair, ctx->user_ip4, port_of(ctx), ctx->protocol);
	if (translate4(ctx, pair, connecting)) {
		ctx->user_ip4 = TO(4, pair).address;
		ctx->user_port = TO(4, pair).port;
	}
}

INLINE void back4(struct bpf_sock_addr *ctx)
{
	struct endpoint4 from = { .address = ctx->user_ip4, .port = port_of(ctx) };
	struct key4 key;

	if (untranslate4(ctx, &from, &key)) {
		ctx->user_ip4 = key.address;
		ctx->user_port = key.port;
	}
}

INLINE void forth6(struct bpf_sock_addr *ctx, int connecting)
{
	struct address6 address;
	word pair[sizeof(struct pair6) / 8];

	if (!wanted(ctx->protocol))
		return;
	address = address6_of(ctx);
	if (is_mapped(&address)) {
		put_frontend4(pair, address.word[3], port_of(ctx), ctx->protocol);
		if (connecting && translate4(ctx, pair, 1)) {
			ctx->user_ip6[3] = TO(4, pair).address;
			ctx->user_port = TO(4, pair).port;
		}
		return;
	}
	put_frontend6(pair, address, port_of(ctx), ctx->protocol);
	if (translate6(ctx, pair, connecting))
		set6(ctx, &TO(6, pair).address, TO(6, pair).port);
}

INLINE void back6(struct bpf_sock_addr *ctx)
{
	struct endpoint6 from = { .address = address6_of(ctx), .port = port_of(ctx) };
	struct endpoint4 from4 = { .address = from.address.word[3], .port = from.port };
	struct key6 key;
	struct key4 key4;

	if (is_mapped(&from.address)) {
		if (untranslate4(ctx, &from4, &key4)) {
			ctx->user_ip6[3] = key4.address;
			ctx->user_port = key4.port;
		}
	} else if (untranslate6(ctx, &from, &key)) {
		set6(ctx, &key.address, key.port);
	}
}

#define PROGRAM(name, does)                                                                                        \
	SEC("cgroup/" #name) int vipwire_##name(struct bpf_sock_addr *ctx)                                         \
	{                                                                                                          \
		does;                                                                                              \
		return 1;                                                                                          \
	}

PROGRAM(connect4, forth4(ctx, 1))
PROGRAM(connect6, forth6(ctx, 1))
PROGRAM(sendmsg4, forth4(ctx, 0))
PROGRAM(sendmsg6, forth6(ctx, 0))
PROGRAM(recvmsg4, back4(ctx))
PROGRAM(recvmsg6, back6(ctx))
PROGRAM(getpeername4, back4(ctx))
PROGRAM(getpeername6, back6(ctx))

INLINE void released(struct bpf_sock *sk)
{
	__u64 cookie = socket_cookie(sk);

	if (map_lookup(&peers4, &cookie))
		map_delete(&peers4, &cookie);
	if (sk->family != 2 /* AF_INET */ && map_lookup(&peers6, &cookie))
		map_delete(&peers6, &cookie);
}

SEC("cgroup/sock_release") int vipwire_sock_release(struct bpf_sock *sk)
{
	released(sk);
	return 1;
}
