// The numbers of rtnetlink that more than one file here uses: messages, multicast groups and attributes of links and addresses. Pure.

export const RTM_NEWLINK = 16
export const RTM_DELLINK = 17
export const RTM_GETLINK = 18
export const RTM_NEWADDR = 20
export const RTM_DELADDR = 21
export const RTM_GETADDR = 22

export const RTNLGRP_LINK = 1
export const RTNLGRP_IPV4_IFADDR = 5
export const RTNLGRP_IPV6_IFADDR = 9

/** IFLA_*, attributes of links. */
export const IFLA = { IFNAME: 3, LINKINFO: 18, EXT_MASK: 29 } as const
/** IFA_*, attributes of addresses. */
export const IFA = { ADDRESS: 1, LOCAL: 2, FLAGS: 8 } as const

/** The length of struct ifinfomsg, which precedes the attributes of a link. */
export const linkHeader = 16
/** The length of struct ifaddrmsg, which precedes the attributes of an address. */
export const addressHeader = 8
